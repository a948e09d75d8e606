"""The supervisor on real, tiny processes: a web server that can be told to be deaf or to have a child."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from isochrone.cli.up import free_ports
from isochrone.gateway.logfile import LogFile
from isochrone.gateway.supervise import News, Patience, Program, supervise

SERVER = """
import http.server, os, signal, subprocess, sys
print("here I am", flush=True)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "with-child" in sys.argv:
    print("child", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
QUICK = Patience(poll_s=0.02, pause_s_first=0.01, pause_s_max=0.02, steady_s=30.0, failures_max=2, log_check_s=0.05)


class Newsroom:
    """Collects what the supervisor tells, and lets a test wait for it."""

    def __init__(self) -> None:
        self.all: list[News] = []
        self._more = asyncio.Condition()
        self._waiters: set[asyncio.Task[None]] = set()

    def tell(self, news: News) -> None:
        self.all.append(news)
        task = asyncio.ensure_future(self._notify())
        self._waiters.add(task)
        task.add_done_callback(self._waiters.discard)

    async def _notify(self) -> None:
        async with self._more:
            self._more.notify_all()

    async def wait_for(self, name: str, event: str, count: int = 1) -> News:
        def found() -> list[News]:
            return [news for news in self.all if (news.name, news.event) == (name, event)]

        async with asyncio.timeout(20), self._more:
            await self._more.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]

    def order(self, event: str) -> list[str]:
        return [news.name for news in self.all if news.event == event]


def server(name: str, logs: Path, *flags: str, stage: int = 1, stop_s_max: float = 10.0) -> Program:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    argv = (sys.executable, "-c", SERVER, str(port), *flags)
    return Program(name, argv, {}, url, url + "/health", LogFile(logs / f"{name}.log"), stage, stop_s_max)


@contextlib.asynccontextmanager
async def running(
    *programs: Program,
) -> AsyncIterator[tuple[Newsroom, asyncio.Event, asyncio.Event, "asyncio.Task[int]"]]:
    room, stop, now = Newsroom(), asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(supervise(programs, room.tell, stop, now, QUICK))
    try:
        yield room, stop, now, task
    finally:
        stop.set()
        now.set()
        await task


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_stops_lower_stages_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        front, back = server("front", tmp_path, stage=0), server("back", tmp_path, stage=1)
        async with running(back, front) as (room, stop, _, task):
            await room.wait_for("front", "ready")
            await room.wait_for("back", "ready")
            stop.set()
            assert await task == 0
        assert room.order("stopped") == ["front", "back"]
        assert [news.event for news in room.all if news.name == "back"] == ["started", "ready", "stopping", "stopped"]
        assert "here I am" in (tmp_path / "back.log").read_text()

    asyncio.run(scenario())


def test_a_dead_process_starts_again_and_its_children_do_not_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(server("engine", tmp_path, "with-child")) as (room, stop, _, task):
            ready = await room.wait_for("engine", "ready")
            child = int((tmp_path / "engine.log").read_text().split("child ")[1].split()[0])
            assert ready.pid is not None
            assert exists(child)
            os.kill(ready.pid, signal.SIGKILL)
            exited = await room.wait_for("engine", "exited")
            assert exited.code == -signal.SIGKILL
            assert exited.last_lines[0] == "here I am"
            again = await room.wait_for("engine", "ready", 2)
            assert again.pid != ready.pid
            assert not exists(child)
            stop.set()
            assert await task == 0

    asyncio.run(scenario())


def test_a_process_that_always_dies_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        broken = Program(
            "broken", (sys.executable, "-c", "import sys; sys.exit('no such model')"), {}, "http://127.0.0.1:9",
            "http://127.0.0.1:9/", LogFile(tmp_path / "broken.log"), 1, 1.0,
        )  # fmt: skip
        async with running(broken, server("front", tmp_path, stage=0)) as (room, _, _, task):
            assert await task == 1
        assert room.order("started").count("broken") == QUICK.failures_max + 1
        pauses = [news.seconds for news in room.all if news.event == "restarting"]
        assert pauses == [QUICK.pause_s_first, QUICK.pause_s_max]
        assert next(news for news in room.all if news.event == "exited").last_lines == ("no such model",)
        assert room.order("stopped") == ["front"]

    asyncio.run(scenario())


def test_wrong_usage_is_given_up_at_once(tmp_path: Path) -> None:
    misspelt = Program(
        "misspelt", (sys.executable, "-c", "raise SystemExit(2)"), {}, "http://127.0.0.1:9", "http://127.0.0.1:9/",
        LogFile(tmp_path / "misspelt.log"), 1, 1.0,
    )  # fmt: skip
    told: list[News] = []
    assert asyncio.run(supervise([misspelt], told.append, asyncio.Event(), asyncio.Event(), QUICK)) == 1
    assert [news.event for news in told] == ["started", "exited", "given_up"]


def test_one_given_up_of_two_leaves_the_other_running(tmp_path: Path) -> None:
    async def scenario() -> None:
        broken = Program(
            "broken", (sys.executable, "-c", "raise SystemExit(3)"), {}, "http://127.0.0.1:9", "http://127.0.0.1:9/",
            LogFile(tmp_path / "broken.log"), 1, 1.0,
        )  # fmt: skip
        async with running(broken, server("good", tmp_path)) as (room, stop, _, task):
            await room.wait_for("broken", "given_up")
            await room.wait_for("good", "ready")
            assert not task.done()
            stop.set()
            assert await task == 0

    asyncio.run(scenario())


def test_a_deaf_process_is_killed_after_its_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(server("deaf", tmp_path, "deaf", stop_s_max=0.05)) as (room, stop, _, task):
            await room.wait_for("deaf", "ready")
            stop.set()
            assert await task == 0
            assert (await room.wait_for("deaf", "stopped")).code == -signal.SIGKILL

    asyncio.run(scenario())


def test_a_second_wish_to_stop_kills_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(server("deaf", tmp_path, "deaf", stop_s_max=60.0)) as (room, stop, now, task):
            await room.wait_for("deaf", "ready")
            stop.set()
            await room.wait_for("deaf", "stopping")
            now.set()
            assert await asyncio.wait_for(task, 10) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("missing", ["setpriv", None])
def test_a_command_that_is_not_there_is_told(
    tmp_path: Path, missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With setpriv in front a process starts and ends; without it the start itself fails. Both are told alike."""
    if missing:
        monkeypatch.setattr("shutil.which", lambda name: None)

    async def scenario() -> int:
        absent = Program(
            "absent", (str(tmp_path / "nothing"),), {}, "http://127.0.0.1:9", "http://127.0.0.1:9/",
            LogFile(tmp_path / "absent.log"), 1, 1.0,
        )  # fmt: skip
        return await supervise([absent], told.append, asyncio.Event(), asyncio.Event(), QUICK)

    told: list[News] = []
    assert asyncio.run(scenario()) == 1
    assert [news.event for news in told][-2:] == ["exited", "given_up"]
    exited = told[-2]
    assert exited.code == 127
    assert "No such file or directory" in exited.last_lines[-1]


def test_a_long_log_is_moved_away(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", bytes_max=100)
    descriptor = log.open()
    os.write(descriptor, b"old line\n" * 20)
    log.trim()
    os.write(descriptor, b"new line\n")
    os.close(descriptor)
    assert log.path.read_text() == "new line\n"
    assert (tmp_path / "x.log.1").read_text() == "old line\n" * 20
    assert log.last_lines(3) == ["new line"]


def test_the_end_of_a_log_is_of_the_latest_start(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("of yesterday\n")
    log = LogFile(path)
    os.close(log.open())
    log.add("cannot start\n")
    assert log.last_lines(5) == ["cannot start"]
