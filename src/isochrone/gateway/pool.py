"""Connections to one instance: idle ones to lend, new ones while there is room."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from isochrone.adapters.engine.abilities import GIVES_TOKEN_IDS
from isochrone.config.driver import Link, RelayLimits, Tls
from isochrone.gateway import clock
from isochrone.gateway.descriptors import is_ours
from isochrone.gateway.headers import id_line
from isochrone.gateway.names import Names
from isochrone.gateway.samehead import SameHead
from isochrone.gateway.tls import towards_instance
from isochrone.gateway.upstream import Head, Upstream
from isochrone.nouns.instance import InstanceSpec
from isochrone.nouns.instant import Instant

if TYPE_CHECKING:
    from isochrone.gateway.exchange import Exchange
    from isochrone.gateway.fetch import Getter

P = TypeVar("P", Upstream, "Getter")


class Connecting:
    """Stands where the connection will be until there is one. Closing it gives the attempt up."""

    __slots__ = ("task",)

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self.task = task

    def abort(self) -> None:
        self.task.cancel()

    def pause(self) -> None:
        """Nothing is read yet."""

    def resume(self) -> None:
        """Nothing is read yet."""


class Pool:
    """Keep-alive connections of one instance. The one used last is lent first, so that surplus ones age and close."""

    def __init__(self, spec: InstanceSpec, link: Link, limits: RelayLimits) -> None:
        address = urlsplit(spec.url)
        assert address.hostname is not None, f"no host in {spec.url!r}"
        self.id = spec.id
        self.id_line = id_line(spec.id)
        self.limits = limits
        self.host = address.hostname
        self.port = address.port or (443 if address.scheme == "https" else 80)
        self.names = Names(self.host, self.port, limits.resolve_s, link.allow)
        self.tls = towards_instance(link.tls or Tls()) if address.scheme == "https" else None
        self.base = address.path.rstrip("/").encode()
        """Path prefix of the URL, before every request's own path."""
        self.host_line = b" HTTP/1.1\r\nhost: " + address.netloc.rpartition("@")[2].encode("idna") + b"\r\n"
        self.bearer = link.bearer
        self.authorization = b"" if link.bearer is None else b"authorization: Bearer %b\r\n" % link.bearer.encode()
        """The instance's own credentials, which replace the client's; empty: the client's pass."""
        self.gives_ids = spec.engine in GIVES_TOKEN_IDS
        """The engine can be asked for token ids. Of `auto` this is known after the first scrape."""
        self.head: SameHead[Head] = SameHead()
        """Of the answers: the instance's connections are all alike."""
        self.made = 0
        """Connections that are up."""
        self.closing = False
        self._idle: list[Upstream] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, exchange: "Exchange") -> None:
        """Send the exchange's request over an idle connection, or over a new one."""
        idle = self._idle
        while idle:
            upstream = idle.pop()
            if upstream.transport is not None and not upstream.transport.is_closing():
                upstream.start(exchange)
                return
        if self.open >= self.limits.upstream_connections_max:
            exchange.crowded(f"upstream_connections_max = {self.limits.upstream_connections_max} are open")
        else:
            self.connect(exchange)

    def connect(self, exchange: "Exchange") -> None:
        """Send the exchange's request over a new connection."""
        task = asyncio.get_running_loop().create_task(self._connect(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange.upstream = Connecting(task)

    async def reach(self, make: Callable[[], P]) -> P:
        """A new connection to the first address that takes one, with a protocol of its own. Raises OSError."""
        name = self.host if self.tls is not None else None
        addresses = await self.names.addresses()
        for address in addresses:
            protocol = make()
            try:
                await asyncio.get_running_loop().create_connection(
                    partial(_same, protocol), address, self.port, ssl=self.tls, server_hostname=name
                )
            except BaseException as error:
                protocol.abort()
                if not isinstance(error, OSError) or address == addresses[-1]:
                    raise
            else:
                return protocol
        raise AssertionError("a name without addresses raises")

    async def _connect(self, exchange: "Exchange") -> None:
        try:
            async with asyncio.timeout(exchange.limits.connect_s):
                upstream = await self.reach(lambda: Upstream(self))
        except (OSError, ValueError) as error:  # a timeout is an OSError too
            if is_ours(error):
                exchange.crowded(f"no connection can be made: {error}")
            else:
                exchange.unreachable(str(error) or f"no connection within connect_s = {exchange.limits.connect_s:g} s")
            return
        if upstream.transport is None:
            exchange.unreachable("the instance closed the connection at once")
        else:
            upstream.start(exchange)

    def release(self, upstream: Upstream) -> None:
        """An exchange is done with its connection: keep it for the next."""
        if self.closing:
            upstream.abort()
            return
        upstream.idle_since = clock.now()
        self._idle.append(upstream)

    def forget(self, upstream: Upstream) -> None:
        """A connection has closed."""
        self.made -= 1
        if upstream in self._idle:
            self._idle.remove(upstream)

    def sweep(self, now: Instant) -> None:
        """Close connections that have been idle for too long: the instance would close them soon, at a bad moment."""
        oldest = clock.after(now, -self.limits.upstream_idle_s_max)
        kept = 0
        while kept < len(self._idle) and self._idle[kept].idle_since <= oldest:
            kept += 1
        for upstream in self._idle[:kept]:
            upstream.abort()
        del self._idle[:kept]

    def close(self) -> None:
        """Close idle connections now, and the others when their exchanges are done."""
        self.closing = True
        self.names.close()
        for upstream in self._idle:
            upstream.abort()
        self._idle.clear()

    @property
    def open(self) -> int:
        """Connections, those being made included: at most `upstream_connections_max`."""
        return self.made + len(self._tasks)

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)


def _same(protocol: P) -> P:
    return protocol
