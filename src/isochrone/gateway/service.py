"""The whole gateway as one thing that starts and stops: data path, asking loops, admin port, logs, warm start."""

import asyncio
import logging
import random
import ssl
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from isochrone.access.paths import Paths
from isochrone.adapters.keystore import StoreError
from isochrone.cluster import Cluster
from isochrone.config.build import Configuration
from isochrone.config.problems import ConfigError
from isochrone.gateway import descriptors, gauges
from isochrone.gateway.accesslog import AccessLog
from isochrone.gateway.admin import Admin
from isochrone.gateway.admin_server import AdminServer
from isochrone.gateway.app import Gateway, GatewaySettings, plain
from isochrone.gateway.fleet import Fleet
from isochrone.gateway.keywatch import KeyWatch
from isochrone.gateway.metrics import Metrics
from isochrone.gateway.reload import Reloaded, Source, apply, check
from isochrone.gateway.tls import towards_clients
from isochrone.gateway.warmstart import WarmStart
from isochrone.gateway.watch import Watch
from isochrone.observe.families import Family, families

if TYPE_CHECKING:
    from isochrone.gateway.oidc import TokenVerifier

log = logging.getLogger("isochrone.service")


class StartError(Exception):
    """The gateway cannot start; the message says why and names what to change."""


class Service:
    """Made from a configuration; `start`, `reload` now and then, `stop` (which drains)."""

    def __init__(self, configuration: Configuration, source: Source | None = None) -> None:
        """`source`: where a reload finds the configuration anew; None: it cannot be reloaded."""
        file = configuration.file
        self.configuration = configuration
        self._source = source
        self._reloading = asyncio.Lock()
        self.cluster = Cluster(configuration.settings, random.Random(file.seed))
        self.gateway = Gateway(self.cluster, self.gateway_settings(configuration))
        self.watch = Watch(self.gateway, configuration.scrape, random.Random(file.seed + 1))
        self.fleet = Fleet(self.gateway, self.watch)
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
        await self._start_tokens()
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
        try:
            self.tls = self._listen_tls()
        except OSError as error:  # ssl.SSLError too
            raise StartError(f"listen.tls: {error.strerror or error}") from None
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
        if self.warm_start is not None:
            self.warm_start.start()

    async def stop(self, drain_s_max: float | None = None) -> None:
        """Take nothing new, let running requests end, and close everything. Also after a failed start."""
        limit_s = self.cluster.settings.drain_s_max if drain_s_max is None else drain_s_max
        await self.gateway.drain(limit_s)
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

    def gateway_settings(self, configuration: Configuration) -> GatewaySettings:
        """What the data path is told, with no more clients than there can be open files for."""
        file, limits = configuration.file, configuration.relay
        open_files = descriptors.raise_limit()
        most = descriptors.clients_max(open_files, len(configuration.instances))
        log.info("%d open files: at most %d clients at once", open_files, min(most, limits.connections_max))
        if most < limits.connections_max:
            limits = replace(limits, connections_max=most)
        return GatewaySettings(
            limits=limits,
            paths=Paths(configuration.paths),
            routes=configuration.routes,
            aliases=configuration.aliases,
            access=configuration.access,
            inject=file.inject == "usage",
            resume=file.resume,
            half_close=file.listen.half_close == "allow",
        )

    def _listen_tls(self) -> ssl.SSLContext | None:
        """TLS for clients, where a certificate is configured."""
        tls = self.configuration.file.listen.tls
        return None if tls.cert is None else towards_clients(tls.cert, tls.key, tls.client_ca)

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

    async def _start_tokens(self) -> None:
        """Take tokens of an issuer, where one is configured."""
        plan, door = self.configuration.tokens, self.gateway.door
        if plan is None or door is None:
            return
        from isochrone.gateway.jwks import JwksError  # 10 MB of cryptography that most gateways never need
        from isochrone.gateway.oidc import TokenVerifier

        self.tokens = TokenVerifier(plan, door.quotas.tenants)
        try:
            await self.tokens.start()
        except JwksError as error:
            raise StartError(f"jwt: {error}") from None
        door.verifier = self.tokens

    def _process(self) -> list[Family]:
        settings = self.cluster.settings
        return gauges.build_info(settings.policy, settings.shadow) + gauges.process_gauges(
            self.gateway, self.access_log
        )
