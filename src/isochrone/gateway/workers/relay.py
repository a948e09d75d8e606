"""A relay process: takes clients in, carries bytes, and asks the brain about everything else.

Keys and tokens are checked here, against the same store; what a tenant has left is counted by the brain, for all relays
together.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from isochrone.access.tenants import Tenants
from isochrone.adapters.keystore import StoreError
from isochrone.config.build import Configuration
from isochrone.config.driver import Link
from isochrone.config.problems import ConfigError
from isochrone.gateway.app import Gateway, GatewaySettings
from isochrone.gateway.keywatch import KeyWatch
from isochrone.gateway.service import StartError, listener_tls, start_tokens
from isochrone.gateway.workers import frames
from isochrone.gateway.workers.link import BrainLink
from isochrone.gateway.workers.reports import REPORT_S, report_of

if TYPE_CHECKING:
    from isochrone.gateway.oidc import TokenVerifier

log = logging.getLogger("isochrone.relay")

Parse = Callable[[str], Configuration]
"""Makes a configuration of a file's text. Raises ConfigError."""


class Relay:
    """One of `count` relays; `number` tells it from the others."""

    def __init__(self, configuration: Configuration, parse: Parse, number: int, brain: str) -> None:
        """`brain`: path of its Unix socket."""
        self.count = configuration.file.workers.count
        self.configuration = configuration
        self.link = BrainLink(
            number, os.getpid(), brain, configuration.file.workers.brain_wait_s_max, configuration.text
        )
        self.link.joined, self.link.left, self.link.configured = self._joined, self._left, self._configured
        self.gateway = Gateway(self.link, GatewaySettings.of(configuration, self.count), self.link)
        self.tls: ssl.SSLContext | None = None
        self._parse = parse
        self._ways: dict[str, tuple[str, Link]] = {}
        """Instance -> how it is reached."""
        self._keys: KeyWatch | None = None
        self._tokens: TokenVerifier | None = None
        self._reporting: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        """Find the brain, then take clients in. StartError where that fails."""
        await self.link.start()
        door = self.gateway.door
        if door is not None:
            self._keys = KeyWatch(door.ring, self.configuration.keys)
            try:
                self._keys.start()
            except StoreError as error:
                raise StartError(f"keys: {error}") from None
        self._tokens = await start_tokens(self.configuration, door)
        self.tls = listener_tls(self.configuration)
        await self.gateway.start_on(listener, self.tls)
        self._reporting = asyncio.get_running_loop().create_task(self._report(), name="reports")

    async def stop(self) -> None:
        """Let running requests end, at most `drain_s_max`, and close everything."""
        self.gateway.draining = True
        self.link.say(self._figures())
        await self.gateway.drain(self.configuration.settings.drain_s_max)
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        if self._keys is not None:
            await self._keys.close()
        if self._tokens is not None:
            await self._tokens.close()

    async def _report(self) -> None:
        while True:
            self.link.say(self._figures())
            await asyncio.sleep(REPORT_S)

    def _figures(self) -> frames.Report:
        unanswered = float(self.link.unanswered)
        more: frames.Rows = {"isochrone_early_refusals_total": [(("brain_away",), unanswered)]} if unanswered else {}
        return report_of(self.gateway, self.link.open_requests, more)

    # What the brain says.

    def _joined(self, member: frames.Member) -> None:
        """An instance is new, or has other values. Connections are made anew only where it is reached otherwise."""
        name, way = member.spec.id, (member.spec.url, member.link)
        if self._ways.get(name) != way:
            self.gateway.connect(member.spec, member.link)
            self._ways[name] = way
        self.gateway.pools[name].gives_ids = member.gives_ids

    def _left(self, instance: str) -> None:
        self._ways.pop(instance, None)
        self.gateway.disconnect(instance)

    def _configured(self, text: str) -> None:
        """The brain has checked this configuration and taken it up."""
        try:
            new = self._parse(text)
        except ConfigError as error:  # a file that it names has changed since the brain looked
            log.error("the configuration stays as it is: %s", error)
            return
        old, self.configuration = self.configuration, new
        self.gateway.configure(GatewaySettings.of(new, self.count))
        if self._tokens is not None:
            self._tokens.tenants = Tenants(new.access.tenants)
        tls = old.file.listen.tls
        if self.tls is not None and tls.cert is not None and tls == new.file.listen.tls:
            self.tls.load_cert_chain(tls.cert, tls.key)  # it may have been renewed in place
