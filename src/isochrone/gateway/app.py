"""The gateway: a cluster, a listener, pools of connections, and what ties them together.

    gateway = Gateway(cluster, GatewaySettings())
    gateway.add_instance(InstanceSpec(id="a", url="http://127.0.0.1:9001"))
    await gateway.start("127.0.0.1", 8080)
    await gateway.drain(60.0)

Heartbeats, scrapes, the admin API and logs are not in here; they attach from outside: `submit` for events, `http_get`
for asking an instance, `records` for what becomes of requests.
"""

import asyncio
import errno
import logging
import os
import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

from isochrone.access.aliases import Aliases
from isochrone.access.cors import Cors
from isochrone.access.paths import Paths
from isochrone.access.tenants import Tenants
from isochrone.adapters.engine.abilities import GIVES_TOKEN_IDS
from isochrone.cluster import Cluster
from isochrone.config.build import Configuration
from isochrone.config.driver import Access, Link, RelayLimits, Routes
from isochrone.gateway import descriptors, fetch, local
from isochrone.gateway.brain import Brain, Mind
from isochrone.gateway.doorkeeper import Doorkeeper, Menu
from isochrone.gateway.inbound import Bodies
from isochrone.gateway.limits import Sweep
from isochrone.gateway.pool import Pool
from isochrone.gateway.reception import Reception
from isochrone.gateway.resuming import Kept
from isochrone.gateway.server import ClientConnection
from isochrone.nouns.decision import Decision
from isochrone.nouns.events import Event, Found, Observed, Withdrawn
from isochrone.nouns.instance import InstanceSpec

log = logging.getLogger("isochrone.gateway")

TURNED_AWAY_CONNECTIONS_MAX = 64
"""Connections beyond the limit that are open for the moment it takes to say so; the oldest is cut for the next."""
DRAIN_POLL_S = 0.02
LAST_WORDS_S = 1.0
"""After the drain's limit: how long cut answers may take to leave."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How the data path is set up. Everything has a default."""

    limits: RelayLimits = field(default_factory=RelayLimits)
    paths: Paths = field(default_factory=Paths)
    routes: Routes = field(default_factory=Routes)
    aliases: Aliases = field(default_factory=Aliases)
    access: Access = field(default_factory=Access)
    inject: bool = True
    """Splice `stream_options.include_usage` into streamed requests and cut out what it adds. `--inject none`: False."""
    half_close: bool = False
    """A client that has closed its sending side still gets its answers; else that counts as leaving."""
    resume: bool = True
    """Ask for token ids on behalf of streams, so that they can go on on another instance. Needs `inject`."""

    @classmethod
    def of(cls, configuration: Configuration, relays: int = 1) -> Self:
        """As configured, with no more clients than there can be open files for. Of `relays` processes that share the
        work, each has its share of what is bounded for all together."""
        file, limits = configuration.file, configuration.relay
        if relays > 1:
            limits = replace(limits, **{name: -(-getattr(limits, name) // relays) for name in SHARED})
        open_files = descriptors.raise_limit()
        most = descriptors.clients_max(open_files, len(configuration.instances))
        log.info("%d open files: at most %d clients at once", open_files, min(most, limits.connections_max))
        if most < limits.connections_max:
            limits = replace(limits, connections_max=most)
        return cls(
            limits=limits,
            paths=Paths(configuration.paths),
            routes=configuration.routes,
            aliases=configuration.aliases,
            access=configuration.access,
            inject=file.inject == "usage",
            resume=file.resume,
            half_close=file.listen.half_close == "allow",
        )


SHARED = ("connections_max", "upstream_connections_max", "bodies_bytes_max", "resume_bytes_max")
"""Limits of the gateway as a whole."""


class Gateway:
    """Driver 1: real sockets around the one door."""

    def __init__(self, cluster: Menu, settings: GatewaySettings | None = None, brain: Mind | None = None) -> None:
        """`brain`: where another process decides; else `cluster` is a whole one, which decides here."""
        settings = settings or GatewaySettings()
        self.cluster = cluster
        self.limits = settings.limits
        self.half_close = settings.half_close
        estimate = None
        if brain is None:
            assert isinstance(cluster, Cluster)
            brain, estimate = Brain(cluster), cluster.estimate
        self.brain = brain
        self.pools: dict[str, Pool] = {}
        """Connections by instance id."""
        self.connections: set[ClientConnection] = set()
        self.connections_refused = 0
        self.turned_away: dict[ClientConnection, None] = {}
        """Refused connections whose answer is on its way, oldest first: at most TURNED_AWAY_CONNECTIONS_MAX."""
        self.bodies = Bodies(settings.limits.bodies_bytes_max)
        self.kept = Kept(settings.limits.resume_bytes_max, settings.limits.resume_stream_bytes_max)
        access = settings.access
        self.door: Doorkeeper | None = None
        """None: everybody may do everything."""
        if access.keys or access.tenants:
            self.door = Doorkeeper(cluster, Tenants(access.tenants), access.keys, access.anonymous, estimate)
            self.records.append(self.door.record)
            self.brain.unrecorded.append(self.door.forget)
        self.id_prefix = secrets.token_hex(8).encode()
        """Begins the ids that engines are sent; the attempt's number ends them."""
        self.passes_credentials = not access.keys
        """The client's own credentials go to the engine, where that has none configured."""
        self.reception = self._new_reception(settings)
        self.sweep = Sweep(self, settings.limits.sweep_s)
        self.noticed: Callable[[Event], None] = _nothing
        """Called after each event that did not come from a request."""
        self.draining = False
        self.port = 0
        """The port that is listened on, once `start` is through."""
        self._server: asyncio.Server | None = None

    # For those who attach.

    @property
    def records(self) -> list[Callable[[Decision], None]]:
        """Called with each request's decision when it is over. Must not block and must be quick."""
        return self.brain.records

    def submit(self, event: Event) -> None:
        """Hand an event to the cluster and carry out what it says."""
        if isinstance(event, Observed) and (pool := self.pools.get(event.instance)) is not None:
            pool.gives_ids = event.snapshot.engine in GIVES_TOKEN_IDS
        self.brain.submit(event)
        self.noticed(event)

    def models(self) -> dict[str, int | None]:
        """What clients may ask for: model or alias -> longest context, None: unknown."""
        served = self.cluster.models()
        return dict(sorted((served | self.reception.aliases.lengths(served)).items()))

    async def http_get(self, instance: str, path: str, timeout_s: float) -> fetch.Fetched:
        """GET from an instance, with its credentials. Raises TimeoutError or another OSError."""
        pool = self.pools.get(instance)
        if pool is None:
            raise fetch.FetchError(f"no instance {instance!r}")
        return await fetch.get(pool, path, timeout_s)

    # Instances.

    def add_instance(self, spec: InstanceSpec, link: Link | None = None) -> None:
        """Know an instance, or know it anew with other settings."""
        self.connect(spec, link)
        self.submit(Found(spec))

    def connect(self, spec: InstanceSpec, link: Link | None = None) -> Pool:
        """Connections to an instance, from now on with these settings."""
        pool = Pool(spec, link or Link(), self.limits)
        old = self.pools.get(spec.id)
        if old is not None:
            old.close()
        self.pools[spec.id] = pool
        return pool

    def remove_instance(self, instance: str, drain: bool = True) -> None:
        """Send nothing more to an instance; `drain`: let it finish what it has."""
        if instance in self.pools:
            self.submit(Withdrawn(instance, drain))
            self.disconnect(instance)

    def disconnect(self, instance: str) -> None:
        """No new connections to an instance."""
        pool = self.pools.pop(instance, None)
        if pool is not None:
            pool.close()

    def configure(self, settings: GatewaySettings) -> None:
        """New rules for requests that begin from now on. Whether there is a door at all stays as it was."""
        limits, access = settings.limits, settings.access
        self.limits = limits
        self.half_close = settings.half_close
        self.bodies.bytes_max = limits.bodies_bytes_max
        self.kept.bytes_max, self.kept.stream_bytes_max = limits.resume_bytes_max, limits.resume_stream_bytes_max
        self.sweep.interval_s = limits.sweep_s
        for pool in self.pools.values():
            pool.limits = limits
        if self.door is not None:
            self.door.configure(Tenants(access.tenants), access.anonymous)
        refusals = self.reception.refusals
        self.reception = self._new_reception(settings)
        self.reception.refusals = refusals

    def _new_reception(self, settings: GatewaySettings) -> Reception:
        access = settings.access
        cors = Cors(access.origins, access.preflight_s) if access.origins else None
        return Reception(
            self, settings.paths, settings.routes, settings.limits, settings.inject, settings.resume, self.door, cors,
            settings.aliases,
        )  # fmt: skip

    # The listener.

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen. Port 0: any free one, which `port` tells. Raises OSError that names the address."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: ClientConnection(self), host, port, backlog=descriptors.backlog(), reuse_address=True, ssl=tls
            )
        except OSError as error:
            raise OSError(error.errno or errno.EADDRINUSE, f"cannot listen on {host}:{port}: {plain(error)}") from error
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.sweep.start()

    async def start_on(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Take clients in from a socket that is bound already."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self), sock=listener, backlog=descriptors.backlog(), ssl=tls
        )
        self.port = int(listener.getsockname()[1])
        self.sweep.start()

    def admit(self, connection: ClientConnection) -> None:
        """A client has connected: take it in if there is room."""
        if len(self.connections) >= self.limits.connections_max or self.draining:
            self.connections_refused += 1
            self.turned_away[connection] = None
            if len(self.turned_away) > TURNED_AWAY_CONNECTIONS_MAX:
                next(iter(self.turned_away)).abort()
            connection.turn_away(local.draining() if self.draining else local.crowded(self.limits.connections_max))
        else:
            self.connections.add(connection)

    # The end.

    async def drain(self, limit_s: float) -> None:
        """Take nothing new, let running requests end, cut what is left after `limit_s`, and close."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.close_if_idle()
        await self._until_idle(limit_s)
        left = tuple(self.brain.requests.values())
        if left:
            log.warning("%d requests are cut: drain_s_max = %g s is over", len(left), limit_s)
        for exchange in left:
            exchange.give_up(local.draining())
        await self._until_idle(LAST_WORDS_S)
        await self.close()

    async def close(self) -> None:
        """Close everything at once."""
        self.sweep.stop()
        if self._server is not None:
            self._server.close()
        for connection in (*self.connections, *self.turned_away):
            connection.abort()
        for pool in self.pools.values():
            pool.close()
        self.brain.close()
        await asyncio.sleep(0)  # let the loop tell the protocols that their connections are gone

    async def _until_idle(self, limit_s: float) -> None:
        """Wait until no request runs and no client connection is open, at most `limit_s`."""
        for _ in range(int(limit_s / DRAIN_POLL_S) + 1):
            if not self.brain.requests and not self.connections:
                return
            await asyncio.sleep(DRAIN_POLL_S)


def _nothing(event: Event) -> None:
    """Nobody wants to know."""


def plain(error: OSError) -> str:
    """The reason alone: event loops put the address, which we name ourselves, into it."""
    known = (error.errno or 0) > 0  # those of name look-ups are below
    return os.strerror(error.errno or 0) if known else error.strerror or str(error)
