"""Serves emulated instances, one port each, from one process, until it is told to stop."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isochrone.emulator.connection import Connection
from isochrone.emulator.instance import Character, Instance

SWEEP_S = 0.5
"""How often idle connections are looked for."""
BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to listen and how to stop."""

    host: str = "127.0.0.1"
    port: int = 9001
    """Port of the first instance; the others follow. 0: free ports."""
    keep_alive_s: float = 5.0
    """Idle connections are closed after this long, as vLLM does."""
    shutdown_s: float = 20.0
    """SIGTERM: longest wait for running answers."""


class Emulator:
    """Several instances and their listeners. `async with` starts and stops it; `urls` says where they are."""

    def __init__(self, characters: Sequence[Character], place: Place) -> None:
        self.instances = [Instance(character) for character in characters]
        self.urls: list[str] = []
        self._place = place
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Emulator":
        sockets = listen(self._place.host, self._place.port, len(self.instances))
        loop = asyncio.get_running_loop()
        for instance, listener in zip(self.instances, sockets, strict=True):
            host, port = listener.getsockname()[:2]
            self.urls.append(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            self._servers.append(
                await loop.create_server(self._connection_of(instance), sock=listener, backlog=BACKLOG)
            )
        self._sweeper = loop.create_task(self._sweep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _connection_of(self, instance: Instance) -> Callable[[], Connection]:
        return lambda: Connection(instance, self._connections)

    async def _sweep(self) -> None:
        """Closes connections that have been idle for long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            before = loop.time() - self._place.keep_alive_s
            for connection in list(self._connections):
                if connection.idle_since is not None and connection.idle_since < before:
                    connection.close_if_idle()

    async def stop(self) -> None:
        """Accept nothing new, let running answers finish for a while, cut the rest."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.draining = True
            connection.close_if_idle()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._place.shutdown_s
        while self._connections and loop.time() < until:
            await asyncio.sleep(0.02)
        for connection in list(self._connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` bound sockets on consecutive ports, or on free ones for port 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets: list[socket.socket] = []
    try:
        for nth in range(count):
            listener = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port + nth if port else 0))
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets


async def serve_until_signal(characters: Sequence[Character], place: Place, ready: Callable[[list[str]], None]) -> None:
    """Run until SIGINT or SIGTERM. `ready` is called with the URLs once every port listens."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Emulator(characters, place) as emulator:
        ready(emulator.urls)
        await stop.wait()
