"""The load client: calls over a bounded set of kept-alive connections to one address."""

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import Self

from isochrone.loadgen.calls import Call, Result
from isochrone.loadgen.connection import Connection

SWEEP_S = 0.1
"""The one timer that looks for calls over their limit."""


class Client:
    """Calls one host and port. Use as an async context manager; close aborts what is still open.

    connections_max: open connections; further calls wait in a queue, their latency running.
    waiting_max: calls in that queue; one more fails with `no_connection`.
    connect_s, whole_s: limits of a connect and of a whole call, in seconds.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connections_max: int = 1024,
        waiting_max: int = 10_000,
        connect_s: float = 5.0,
        whole_s: float = 120.0,
    ) -> None:
        self.host = host
        self.port = port
        self.connections_max = connections_max
        self.waiting_max = waiting_max
        self.connect_s = connect_s
        self.whole_s = whole_s
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._connecting = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._look_for_late_calls()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [*self._busy, *self._idle]:
            connection.fail("cancelled")
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports call connection_lost

    async def call(self, call: Call, intended_at: float | None = None) -> Result:
        """Send one call and wait for its end. Never raises for what the peer does: the result says it.

        intended_at: the instant from which latency counts, on `time.monotonic`; None: now.
        """
        now = time.monotonic()
        result = Result(call.route, call.stream, now if intended_at is None else intended_at)
        connection = await self._acquire(result)
        if connection is None:
            return result
        reused = connection.calls > 0
        await self._exchange(connection, call, result)
        if reused and result.error == "closed":
            # The peer closed an idle connection while the call was on its way: any client would send it again.
            result.error, result.ended_at = "", None
            connection = await self._connect(result)
            if connection is not None:
                await self._exchange(connection, call, result)
        return result

    async def _exchange(self, connection: Connection, call: Call, result: Result) -> None:
        self._busy.add(connection)
        done = connection.send(call, result)
        try:
            await done
        except asyncio.CancelledError:
            connection.fail("cancelled")
            raise

    async def _acquire(self, result: Result) -> Connection | None:
        while True:
            while self._idle:
                connection = self._idle.pop()
                if connection.usable:
                    return connection
            if len(self._busy) + self._connecting < self.connections_max:
                return await self._connect(result)
            if len(self._waiting) >= self.waiting_max:
                self._give_up(result, "no_connection")
                return None
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake_one()
                raise

    async def _connect(self, result: Result) -> Connection | None:
        loop = asyncio.get_running_loop()
        host = f"{self.host}:{self.port}"
        self._connecting += 1
        try:
            async with asyncio.timeout(self.connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(host, self._release), self.host, self.port
                )
        except (OSError, TimeoutError):
            self._wake_one()
            self._give_up(result, "connect")
            return None
        finally:
            self._connecting -= 1
        return connection

    def _give_up(self, result: Result, error: str) -> None:
        result.error = error
        result.ended_at = time.monotonic()

    def _release(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if connection.usable:
            self._idle.append(connection)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _look_for_late_calls(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = time.monotonic() - self.whole_s
        for connection in [each for each in self._busy if (each.in_hand_since() or oldest) < oldest]:
            connection.fail("timeout")
        self._sweep = loop.call_later(SWEEP_S, self._look_for_late_calls)
