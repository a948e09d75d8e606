"""The access log: one JSON line a request, never a word of its prompt.

A line is built when the request ends (about 3 us) and waits in memory; a thread writes what has gathered, so that a
slow disk or a pipe that nobody reads never stops the event loop. What does not fit is counted and left out. JSON
escapes line breaks and control characters: no client can forge a line.
"""

import asyncio
import logging
import os
import queue
import sys
import threading
from datetime import UTC, datetime

import msgspec

from isochrone.gateway import clock
from isochrone.nouns.decision import Decision
from isochrone.nouns.instant import Instant

log = logging.getLogger("isochrone.accesslog")

FLUSH_S = 0.5
"""How long a line waits at most before it is handed to the writing thread."""
NAME_CHARS_MAX = 256
"""Of names that clients choose."""
CLOSE_S_MAX = 2.0
"""At exit: longest wait for the last lines to be written."""
POLL_S = 0.005


class Line(msgspec.Struct, omit_defaults=False):
    """One line, in this order."""

    time: str
    id: str
    tenant: str
    key: str
    model: str
    path: str
    route: str
    stream: bool
    instance: str | None
    attempts: int
    queue_s: float
    ttft_s: float | None
    """Streams only: a whole answer has no first token that the gateway could see."""
    e2e_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    outcome: str
    status: int
    reason: str


class AccessLog:
    """A sink for decision records. `target`: `-` for standard output, or a file's path (appended to)."""

    def __init__(self, target: str, lines_max: int = 10_000) -> None:
        self.target = target
        self.lines_max = lines_max
        """Lines in memory that are not yet written; more are left out."""
        self.left_out = 0
        self.written = 0
        self._lines: list[bytes] = []
        self._encode = msgspec.json.Encoder().encode
        self._second = -1
        self._stamp = ""
        self._descriptor = -1
        self._handed: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        """To the writing thread: at most one batch, since the next waits until `_busy` is down."""
        self._busy = False
        self._task: asyncio.Task[None] | None = None
        self._complained = False

    def record(self, decision: Decision) -> None:
        """Take one decision's line."""
        if len(self._lines) >= self.lines_max:
            self.left_out += 1
            return
        self._lines.append(self._encode(self._line(decision)) + b"\n")

    def _line(self, decision: Decision) -> Line:
        arrived, first, ended = decision.arrived_at, decision.first_token_at, decision.ended_at
        tries = decision.tries
        return Line(
            self._now(),
            decision.request,
            decision.tenant[:NAME_CHARS_MAX],
            decision.key,
            decision.model[:NAME_CHARS_MAX],
            decision.path,
            decision.route,
            decision.stream,
            decision.winner or (tries[-1].instance if tries else None),
            len(tries),
            _span_s(arrived, arrived + int(decision.queue_wait_s * 1e9)),
            _span_s(arrived, first) if first is not None and decision.stream else None,
            _span_s(arrived, ended) if ended is not None else 0.0,
            decision.prompt_tokens,
            decision.cached_tokens,
            decision.output_tokens,
            decision.outcome,
            decision.status,
            decision.reason,
        )

    def _now(self) -> str:
        """ISO 8601 in UTC with milliseconds; all but those are made once a second."""
        wall_s = clock.wall_s()
        second = int(wall_s)
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._stamp}.{int((wall_s - second) * 1000):03d}Z"

    def start(self) -> None:
        """Open the target (OSError where that fails) and write from now on. Needs a running event loop."""
        self._open()
        # A daemon: when standard output is a pipe that nobody reads, the process can still end.
        threading.Thread(target=self._write_all, name="access log", daemon=True).start()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="access log")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            self._hand_over()

    def _hand_over(self) -> None:
        """Give what has gathered to the writing thread, unless it still writes the batch before."""
        if self._lines and not self._busy:
            self._busy = True
            lines, self._lines = self._lines, []
            self._handed.put(lines)

    async def flush(self) -> None:
        """Wait until all lines are written. TimeoutError after CLOSE_S_MAX."""
        async with asyncio.timeout(CLOSE_S_MAX):
            while self._lines or self._busy:
                self._hand_over()
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Write the last lines and close."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self.flush()
        except TimeoutError:
            log.warning("access log %s takes no lines; the last ones are lost", self.target)
        self._handed.put(None)

    def _open(self) -> None:
        if self.target == "-":
            self._descriptor = sys.stdout.fileno()
        else:
            self._descriptor = os.open(self.target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    # In the writing thread.

    def _write_all(self) -> None:
        while (lines := self._handed.get()) is not None:
            self._write(lines)
            self._busy = False
        if self.target != "-":
            os.close(self._descriptor)

    def _write(self, lines: list[bytes]) -> None:
        try:
            self._follow_rotation()
            rest = memoryview(b"".join(lines))
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            self.written += len(lines)
            self._complained = False
        except OSError as error:
            self.left_out += len(lines)
            if not self._complained:
                self._complained = True
                log.warning("access log %s: %s; lines are left out until it works again", self.target, error)

    def _follow_rotation(self) -> None:
        """Open the file anew when another process has moved it away (logrotate and the like)."""
        if self.target == "-":
            return
        try:
            there = os.stat(self.target)
            ours = os.fstat(self._descriptor)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
        except FileNotFoundError:
            pass
        old = self._descriptor
        self._open()
        os.close(old)


def _span_s(start: Instant, end: Instant) -> float:
    """Seconds between two instants, to the microsecond."""
    return (end - start) // 1000 / 1e6
