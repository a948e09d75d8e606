"""Child processes: started, awaited, and gone however the block is left."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from isochrone.cli.rig import RigError, child, tail, urls_in

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_child_is_gone_after_its_block(tmp_path: Path) -> None:
    seen: list[int] = []

    async def scene() -> None:
        async with child(SLEEPER, tmp_path / "log") as process:
            assert alive(process.pid)
            seen.append(process.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(scene())
    assert not alive(seen[0])


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.cli.rig.STOP_S_MAX", 0.05)

    async def scene() -> int:
        log = tmp_path / "log"
        async with child(STUBBORN, log) as process:
            while "up" not in tail(log):
                await asyncio.sleep(0.01)
        return process.pid

    assert not alive(asyncio.run(scene()))


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert tail(log, 2) == "line 98\nline 99"


def test_ready_file_must_hold_urls(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.write_text('{"urls": ["http://127.0.0.1:1"]}')
    assert urls_in(ready) == ["http://127.0.0.1:1"]
    ready.write_text('{"urls": []}')
    with pytest.raises(RigError):
        urls_in(ready)
