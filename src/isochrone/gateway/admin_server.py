"""Serves the admin API from the gateway's own event loop, on its own port."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

CONNECTIONS_MAX = 64
"""Admin requests under way at once; more are answered with 503."""
IDLE_S_MAX = 15.0
"""An admin connection without a request is closed after this."""


class _Server(uvicorn.Server):
    """Leaves signals to the gateway."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class AdminServer:
    """Starts and stops the admin port."""

    def __init__(self, app: Starlette) -> None:
        self._server = _Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=int(IDLE_S_MAX),
                timeout_graceful_shutdown=1,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port that it is. OSError where the port is taken."""
        return await self.start_on(
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        )

    async def start_on(self, listener: socket.socket) -> int:
        """Answer on a socket that listens already; the port that it is."""
        listener.setblocking(False)
        self._task = asyncio.get_running_loop().create_task(self._server.serve([listener]), name="admin API")
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0)
        chosen: int = listener.getsockname()[1]
        return chosen

    async def close(self) -> None:
        """Stop listening and finish what is under way (1 s)."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
