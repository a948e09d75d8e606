"""Emulated engines and a gateway as child processes, for a measurement: fresh for every run, gone after it."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from isochrone.cli.up import free_ports, own_command
from isochrone.gateway.supervise import answers_200, dies_with_us

START_S_MAX = 30.0
"""Start to ready. Importing on a busy machine takes seconds; more than this is a fault."""
STOP_S_MAX = 5.0
"""SIGTERM to SIGKILL: nothing runs any more when a run is over, so that there is nothing to wait for."""
POLL_S = 0.05


class RigError(Exception):
    """A child process did not start, or died; the text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The emulated engines of one run."""

    profile: str
    count: int = 4
    slow: tuple[str, ...] = ()
    """`INDEX:FACTOR` of engines whose steps take longer."""
    extra: tuple[str, ...] = ()
    """More flags for `isochrone emulate`."""


@asynccontextmanager
async def engines(wanted: Engines, logs: Path) -> AsyncIterator[list[str]]:
    """URLs of engines with empty caches, ready to serve."""
    ready = logs / "engines.json"
    ready.unlink(missing_ok=True)
    flags = ["--host", "127.0.0.1", "--port", "0", "--count", str(wanted.count), "--profile", wanted.profile]
    for slow in wanted.slow:
        flags += ["--slow", slow]
    argv = own_command("emulate", *flags, "--ready-file", str(ready), *wanted.extra)
    async with child(argv, logs / "engines.log") as process:
        await _until(process, logs / "engines.log", ready.exists)
        yield urls_in(ready)


def urls_in(ready_file: Path) -> list[str]:
    """What `isochrone emulate --ready-file` wrote: `{"urls": [...]}`."""
    said = json.loads(ready_file.read_text())
    urls = said.get("urls") if isinstance(said, dict) else None
    if not isinstance(urls, list) or not urls:
        raise RigError(f"{ready_file} holds no URLs")
    return [str(url) for url in urls]


@asynccontextmanager
async def gateway(instances: Sequence[str], policy: str, logs: Path, extra: Sequence[str] = ()) -> AsyncIterator[int]:
    """Port of a gateway that has learnt nothing yet and sees at least one ready instance; `engine-1` is the first."""
    port, admin_port = free_ports(2)
    flags = ["--port", str(port), "--admin-port", str(admin_port), "--policy", policy, *extra]
    for number, url in enumerate(instances, start=1):
        flags += ["--instance", f"{url},id=engine-{number}"]
    log = logs / f"gateway-{policy}.log"
    async with child(own_command("serve", *flags), log) as process:
        await _until(process, log, lambda: answers_200(f"http://127.0.0.1:{admin_port}/ready", 1.0))
        yield port


@asynccontextmanager
async def child(argv: Sequence[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process in a group of its own (Ctrl-C reaches us alone), stopped when the block is left, however it is left."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *dies_with_us(argv), stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _until(process: asyncio.subprocess.Process, log: Path, ready: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until `ready()` holds; RigError when the process ends before it, or takes too long."""
    try:
        async with asyncio.timeout(START_S_MAX):
            while True:
                if process.returncode is not None:
                    raise RigError(f"a child process ended with status {process.returncode}:\n{tail(log)}")
                answer = ready()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise RigError(f"a child process was not ready after {START_S_MAX:g} s:\n{tail(log)}") from None


def tail(log: Path, lines: int = 12) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""
