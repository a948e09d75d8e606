"""The whole gateway as one thing that starts and stops: data path, asking loops, admin port, logs, warm start."""

import asyncio
import logging
import random
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isochrone.adapters.keystore import StoreError
from isochrone.cluster import Cluster
from isochrone.config.build import Configuration
from isochrone.config.problems import ConfigError
from isochrone.gateway import gauges
from isochrone.gateway.accesslog import AccessLog
from isochrone.gateway.admin import Admin
from isochrone.gateway.admin_server import AdminServer
from isochrone.gateway.app import Gateway, GatewaySettings, plain
from isochrone.gateway.doorkeeper import Doorkeeper
from isochrone.gateway.fleet import Fleet
from isochrone.gateway.keywatch import KeyWatch
from isochrone.gateway.metrics import Metrics
from isochrone.gateway.reload import Reloaded, Source, apply, check
from isochrone.gateway.tls import towards_clients
from isochrone.gateway.warmstart import WarmStart
from isochrone.gateway.watch import Watch
from isochrone.gateway.workers.sessions import Sessions
from isochrone.observe.families import Family, families

if TYPE_CHECKING:
    from isochrone.gateway.oidc import TokenVerifier

log = logging.getLogger("isochrone.service")


class StartError(Exception):
    """The gateway cannot start; the message says why and names what to change."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What the brain of several relay processes is given by the process that starts it."""

    epoch: int
    """Brains before this one."""
    relays: socket.socket
    """Where relays connect: a Unix socket that is bound already."""
    admin: socket.socket
    """Of the admin port, which listens already."""
    port: int
    """Where the relays take clients in."""


class Service:
    """Made from a configuration; `start`, `reload` now and then, `stop` (which drains)."""

    def __init__(self, configuration: Configuration, source: Source | None = None, seat: Seat | None = None) -> None:
        """`source`: where a reload finds the configuration anew; None: it cannot be reloaded. `seat`: clients are taken
        in by relay processes; None: here."""
        file = configuration.file
        self.configuration = configuration
        self._source = source
        self._seat = seat
        self._reloading = asyncio.Lock()
        self.cluster = Cluster(configuration.settings, random.Random(file.seed))
        self.gateway = Gateway(self.cluster, GatewaySettings.of(configuration))
        self.watch = Watch(self.gateway, configuration.scrape, random.Random(file.seed + 1))
        self.fleet = Fleet(self.cluster, self.gateway, self.watch)
        self.relays: Sessions | None = None
        if seat is not None:
            relays = configuration.file.workers.count
            self.relays = Sessions(
                self.cluster, self.gateway, seat.relays, relays, seat.epoch, lambda: self.configuration.text
            )
            self.gateway.noticed = self.relays.noticed
            self.relays.take_over = self.fleet.take_over
            self.fleet.relays = self.relays
        self.access_log = AccessLog(file.access_log, file.limits.log_lines_max) if file.access_log != "off" else None
        self.warm_start = WarmStart(Path(file.warm_start), self.cluster) if file.warm_start else None
        self.metrics = Metrics()
        self.metrics.add(lambda: families(self.cluster.series))
        self.metrics.add(lambda: gauges.instance_gauges(self.cluster.instances()))
        self.metrics.add(lambda: gauges.queue_gauges(self.cluster.queues()))
        self.metrics.add(lambda: gauges.asking_counters(self.watch.instances.items()))
        self.metrics.add(self._process)
        self.keys = self._key_watch()
        self.admin_api = Admin(self.fleet, configuration, self.metrics, self.gateway.door, self.keys, self.reload)
        self.admin = AdminServer(self.admin_api.app())
        self.tokens: TokenVerifier | None = None
        self.tls: ssl.SSLContext | None = None
        """Of the listener for clients, once it listens."""
        self.port = 0
        self.admin_port = 0

    async def start(self) -> None:
        """Listen and begin to ask instances. StartError where that fails."""
        file = self.configuration.file
        if self.keys is not None:
            try:
                self.keys.start()
            except StoreError as error:
                raise StartError(f"keys: {error}") from None
        if self.warm_start is not None and self.warm_start.load():
            log.info("warm start: took up what %s knows", file.warm_start)
        if self.access_log is not None:
            try:
                self.access_log.start()
            except OSError as error:
                raise StartError(f"access_log: {file.access_log}: {error.strerror or error}") from None
            self.gateway.records.append(self.access_log.record)
        for spec in self.configuration.instances:
            try:
                self.fleet.join(spec, self.configuration.links[spec.id])
            except OSError as error:  # ssl.SSLError too
                raise StartError(f"instance {spec.id}: tls: {error}") from None
        if self._seat is None:
            self.tokens = await start_tokens(self.configuration, self.gateway.door)
        await (self._listen() if self._seat is None else self._take_relays(self._seat))
        if self.warm_start is not None:
            self.warm_start.start()

    async def stop(self, drain_s_max: float | None = None) -> None:
        """Take nothing new, let running requests end, and close everything. Also after a failed start."""
        limit_s = self.cluster.settings.drain_s_max if drain_s_max is None else drain_s_max
        await self.gateway.drain(limit_s)
        if self.relays is not None:
            await self.relays.close()
        await self.watch.close()
        if self.tokens is not None:
            await self.tokens.close()
        if self.keys is not None:
            await self.keys.close()
        if self.access_log is not None:
            await self.access_log.close()
        if self.warm_start is not None and self.port:
            await self.warm_start.close()
        await self.admin.close()

    async def reload(self) -> Reloaded:
        """Read the configuration anew and take it up. Raises ConfigError, and then nothing has changed."""
        if self._source is None:
            raise ConfigError(["there is no configuration file to read again"])
        async with self._reloading:
            new = await asyncio.to_thread(self._source)
            await asyncio.to_thread(check, new)
            return apply(self, new)

    async def _listen(self) -> None:
        """Take in clients and operators. StartError where an address is taken, or a certificate cannot be read."""
        file = self.configuration.file
        self.tls = listener_tls(self.configuration)
        try:
            await self.gateway.start(file.listen.host, file.listen.port, self.tls)
            self.port = self.gateway.port
        except OSError as error:
            raise StartError(error.strerror or str(error)) from None
        try:
            self.admin_port = await self.admin.start(file.admin.host, file.admin.port)
        except OSError as error:
            raise StartError(
                f"admin port: cannot listen on {file.admin.host}:{file.admin.port}: {plain(error)}"
            ) from None

    async def _take_relays(self, seat: Seat) -> None:
        """Take in relays, which take in clients, and operators."""
        assert self.relays is not None
        self.gateway.sweep.start()
        await self.relays.start()
        self.port = seat.port
        self.admin_port = await self.admin.start_on(seat.admin)

    def _key_watch(self) -> KeyWatch | None:
        """What keeps keys and usage; None where everybody may do everything."""
        door = self.gateway.door
        if door is None:
            return None
        keys = KeyWatch(door.ring, self.configuration.keys)
        self.gateway.records.append(keys.record)
        self.metrics.add(keys.families)
        self.metrics.add(lambda: gauges.tenant_gauges(door.quotas.accounts.values()))
        return keys

    def _process(self) -> list[Family]:
        settings = self.cluster.settings
        build = gauges.build_info(settings.policy, settings.shadow)
        if self.relays is not None:
            return build + self.relays.reports.families(self.access_log)
        return build + gauges.process_gauges(self.gateway, self.access_log)


def listener_tls(configuration: Configuration) -> ssl.SSLContext | None:
    """TLS for clients, where a certificate is configured. StartError where it cannot be read."""
    tls = configuration.file.listen.tls
    try:
        return None if tls.cert is None else towards_clients(tls.cert, tls.key, tls.client_ca)
    except OSError as error:  # ssl.SSLError too
        raise StartError(f"listen.tls: {error.strerror or error}") from None


async def start_tokens(configuration: Configuration, door: Doorkeeper | None) -> "TokenVerifier | None":
    """Take tokens of an issuer, where one is configured. StartError where its keys cannot be used."""
    if configuration.tokens is None or door is None:
        return None
    from isochrone.gateway.jwks import JwksError  # 10 MB of cryptography that most gateways never need
    from isochrone.gateway.oidc import TokenVerifier

    tokens = TokenVerifier(configuration.tokens, door.quotas.tenants)
    try:
        await tokens.start()
    except JwksError as error:
        raise StartError(f"jwt: {error}") from None
    door.verifier = tokens
    return tokens
