"""`serve --workers` in the loop of a test: brain and relays are real and talk over a socket, but nobody is a process.

What `running.Served` is for one process, with the same figures to look at.
"""

import asyncio
import itertools
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from isochrone.config.build import Configuration
from isochrone.config.loader import load
from isochrone.gateway.service import Seat, Service
from isochrone.gateway.workers.relay import Relay
from isochrone.nouns.instance import State
from isochrone.nouns.settings import Settings
from tests.support.fake_engine import FakeEngine
from tests.support.running import Served
from tests.support.service import QUICK

RELAYS = 2


class Relayed(Served):
    """A brain and its relays. Each look at `port` gives the next relay's, as the kernel spreads clients over them."""

    def __init__(self, configuration: Configuration, folder: Path) -> None:
        self._configuration = configuration
        self._path = folder / "brain"
        self._brains = self._bound(socket.AF_UNIX, str(self._path))
        self._epochs = itertools.count()
        self.service = self._new_brain()
        super().__init__(self.service.gateway)
        self.relays = [
            Relay(configuration, lambda text: configuration, number, str(self._path)) for number in range(RELAYS)
        ]
        self._turns = itertools.cycle(self.relays)

    @property
    def port(self) -> int:
        return next(self._turns).gateway.port

    async def start(self) -> None:
        """Returns once all instances are ready."""
        await self.service.start()
        await asyncio.gather(*(relay.start(self._bound(socket.AF_INET, ("127.0.0.1", 0))) for relay in self.relays))
        await self._until_ready()

    async def kill_brain(self) -> None:
        """It is gone without a last word."""
        assert self.service.relays is not None
        for session in self.service.relays.up.values():
            session.channel.abort()
        await self.service.relays.close()
        while self.gateway.brain.requests:  # a process would be gone by now; this one has to be taken apart
            await asyncio.sleep(0)
        await self.service.stop(0.0)

    async def start_brain(self) -> None:
        """The next one. Returns once it knows all that the relays have to tell."""
        self.service = self._new_brain()
        self.gateway = self.service.gateway
        self.gateway.records.append(self.records.append)
        await self.service.start()
        await self._until_ready()
        while not all(relay.link.is_up for relay in self.relays):
            await asyncio.sleep(0.001)

    async def kill_relay(self, relay: Relay) -> None:
        """It is gone without a last word, and with it all its connections."""
        self.relays.remove(relay)
        relay.link.close()
        self._turns = itertools.cycle(self.relays)
        await relay.gateway.close()
        await relay.stop()

    async def stop(self) -> None:
        for relay in list(self.relays):
            await self.kill_relay(relay)
        await self.kill_brain()
        self._brains.close()

    def assert_nothing_left(self) -> None:
        super().assert_nothing_left()
        for relay in self.relays:
            gateway, link = relay.gateway, relay.link
            assert not link.requests
            assert not link.attempts
            assert link.open_requests == 0
            assert (gateway.bodies.held_bytes, gateway.kept.held_bytes, link.faults) == (0, 0, 0)

    async def until_idle(self) -> None:
        brain = self.gateway.brain
        while brain.requests or brain.attempts or any(relay.link.open_requests for relay in self.relays):
            await asyncio.sleep(0.001)

    async def until_alone(self) -> None:
        while any(relay.gateway.connections for relay in self.relays):
            await asyncio.sleep(0.001)
        await self.until_idle()

    async def _until_ready(self) -> None:
        while any(view.state != State.READY for view in self.service.cluster.instances()):
            await asyncio.sleep(0.001)

    def _new_brain(self) -> Service:
        admin = self._bound(socket.AF_INET, ("127.0.0.1", 0))
        return Service(self._configuration, seat=Seat(next(self._epochs), self._brains.dup(), admin, 0))

    @staticmethod
    def _bound(family: int, address: object) -> socket.socket:
        made = socket.socket(family)
        made.bind(address)  # type: ignore[arg-type]  # a path or a host with a port
        made.listen()
        return made


@asynccontextmanager
async def relayed(*engines: FakeEngine, settings: Settings) -> AsyncIterator[Relayed]:
    """`RELAYS` relays in front of these engines, all of them ready. Of `settings`, what is not the default counts."""
    heartbeat = {"interval_s": 0.02, "timeout_s": 10.0, "ready_answers": 1}  # a slow machine is no reason to lose them
    instances = [{"url": engine.url} for engine in engines]
    configuration = load(
        overrides={**QUICK, "heartbeat": heartbeat, "workers": {"count": RELAYS}, "instances": instances}
    )
    default, names = Settings(), Settings.__struct_fields__
    changed = {name: getattr(settings, name) for name in names if getattr(settings, name) != getattr(default, name)}
    configuration = replace(configuration, settings=msgspec.structs.replace(configuration.settings, **changed))
    folder = tempfile.mkdtemp(prefix="isochrone-")
    made = Relayed(configuration, Path(folder))
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
        shutil.rmtree(folder)
