"""`isochrone serve --workers N` as a process of a test run: its processes by name, and its two ports."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support import calls
from tests.support.fake_engine import DONE, END, SSE_HEAD, FakeEngine, Wire, chunk, delta
from tests.support.service import QUICK

START_S_MAX = 30.0
END_S_MAX = 10.0
"""For a test's last clients to be noticed as gone."""
RELAYS = 2


class Crew:
    """The supervisor, and through it the others."""

    def __init__(self, process: "subprocess.Popen[str]", file: Path) -> None:
        self.process = process
        self.file = file
        self.log: list[str] = []
        self.port = self.admin_port = 0
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            ports = re.search(r"serving \w+://[\d.]+:(\d+) by \d+ relays, admin http://[\d.]+:(\d+)", line)
            if ports is not None:
                self.port, self.admin_port = int(ports[1]), int(ports[2])
                self._ready.set()
        self._ready.set()

    async def ready(self) -> None:
        await asyncio.to_thread(self._ready.wait, START_S_MAX)
        assert self.port, "".join(self.log)

    def pids(self, name: str) -> list[int]:
        """Processes whose name begins so: `brain`, `relay`, `relay-0`."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = []
        for child in children:
            with suppress(FileNotFoundError, ProcessLookupError):  # ends while it is looked at
                if Path(f"/proc/{child}/comm").read_text().startswith(f"iso-{name}"):
                    found.append(int(child))
        return found

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to the one process of that name; its id."""
        (pid,) = self.pids(name)
        os.kill(pid, number)
        return pid

    async def replaced(self, name: str, pid: int) -> None:
        """Wait until another process has that name."""
        while self.pids(name) in ([], [pid]):
            await asyncio.sleep(0.01)

    async def call(self, path: str, method: str = "GET", body: object = None) -> calls.Answer:
        """Ask the admin port."""
        return await asyncio.to_thread(calls.call, f"http://127.0.0.1:{self.admin_port}", method, path, body)

    async def json(self, path: str) -> Any:
        return (await self.call(path)).json()

    async def metric(self, name: str, labels: str = "") -> float:
        """Sum over all rows of a metric whose labels hold this text."""
        text = (await self.call("/metrics")).body.decode()
        rows = [line for line in text.splitlines() if line.startswith((name + "{", name + " ")) and labels in line]
        return sum(float(row.rpartition(" ")[2]) for row in rows)

    async def until_metric(self, name: str, value: float, labels: str = "") -> None:
        while await self.metric(name, labels) != value:
            await asyncio.sleep(0.02)

    async def until_logged(self, words: str, times: int) -> None:
        while sum(words in line for line in self.log) < times:
            await asyncio.sleep(0.01)

    async def until_decided(self, request: str, outcome: str) -> Any:
        """Wait until the record of a request says so."""
        while True:
            answer = await self.call(f"/admin/decisions/{request}")
            if answer.status == 200 and answer.json()["outcome"] == outcome:
                return answer.json()
            await asyncio.sleep(0.02)

    async def assert_nothing_left(self) -> None:
        """Every count is back to zero, and no bug of ours was caught."""
        await self.until_metric("isochrone_open_requests", 0)
        for view in await self.json_list("/admin/instances", "instances"):
            assert (view["in_flight"], view["pending_prefill_tokens"], view["owed_output_tokens"]) == (0, 0, 0), view
        for view in await self.json_list("/admin/queues", "queues"):
            assert view["depth"] == 0, view
        await self.until_metric("isochrone_relay_open_requests", 0)
        assert await self.metric("isochrone_faults_total") == 0, "".join(self.log)
        assert not [line for line in self.log if " ERROR " in line or "Traceback" in line], "".join(self.log)

    async def json_list(self, path: str, name: str) -> list[Any]:
        return list((await self.json(path))[name])

    async def stop(self) -> int:
        """SIGTERM and wait; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, START_S_MAX)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S_MAX)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # children of a dead supervisor, too
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def configuration(*urls: str, **more: Any) -> str:
    """The file; QUICK's intervals."""
    workers = {"count": RELAYS, **more.pop("workers", {})}
    return json.dumps({**QUICK, "workers": workers, "instances": [{"url": url} for url in urls], **more})


@asynccontextmanager
async def crew(folder: Path, *engines: FakeEngine | str, **more: Any) -> AsyncIterator[Crew]:
    """All processes, up, with every instance ready."""
    urls = [engine if isinstance(engine, str) else engine.url for engine in engines]
    file = folder / "isochrone.yaml"
    file.write_text(configuration(*urls, **more))
    made = Crew(started(file), file)
    try:
        await made.ready()
        while [view["state"] for view in await made.json_list("/admin/instances", "instances")] != ["ready"] * len(
            urls
        ):
            await asyncio.sleep(0.01)
        yield made
    finally:
        await asyncio.to_thread(made.end)


def started(file: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "isochrone.cli.main", "serve", "--config", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


class Gated:
    """A script: a stream whose first token comes at once, and the rest when the gate opens."""

    def __init__(self, tokens: int = 5) -> None:
        self.gate = asyncio.Event()
        self.events = [*(delta(f"w{n} ", "length" if n == tokens - 1 else None) for n in range(tokens)), DONE]

    async def __call__(self, wire: Wire) -> None:
        wire.send(SSE_HEAD + chunk(self.events[0]))
        await self.gate.wait()
        for event in self.events[1:]:
            wire.send(chunk(event))
            await wire.turn()
        wire.send(END)

    @property
    def text(self) -> bytes:
        """What the client gets."""
        return b"".join(self.events)
