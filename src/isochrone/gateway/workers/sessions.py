"""The brain's end: a session for each relay.

A brain that follows another one must not decide on half the picture. Until all relays have told what they have under
way, and all instances have answered once, or SETTLE_S_MAX has passed, it takes news in and keeps it for later.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from isochrone.cluster import Cluster
from isochrone.gateway.app import Gateway
from isochrone.gateway.workers import frames
from isochrone.gateway.workers.channel import Channel
from isochrone.gateway.workers.reports import Reports
from isochrone.gateway.workers.session import Session
from isochrone.nouns.events import Adopted, Event, Observed
from isochrone.nouns.instance import State

SETTLE_S_MAX = 1.0
"""After its start a brain waits so long for relays and instances before it decides."""
SETTLE_POLL_S = 0.01

log = logging.getLogger("isochrone.brain")


class Sessions:
    """All relays. `listener`: a Unix socket that outlives this process, so that no relay is ever refused."""

    def __init__(
        self,
        cluster: Cluster,
        gateway: Gateway,
        listener: socket.socket,
        relays: int,
        epoch: int,
        text: Callable[[], str | None],
    ) -> None:
        """`relays`: how many there should be. `text`: the configuration file in force."""
        self.cluster = cluster
        self.gateway = gateway
        self.relays = relays
        self.reports = Reports(gateway)
        self.complete = asyncio.Event()
        """Set once every relay takes clients in."""
        self.up: dict[int, Session] = {}
        """By relay."""
        self.members: dict[str, frames.Member] = {}
        """What relays are told of instances."""
        self.take_over: Callable[[frames.Member], None] = lambda member: None
        """Called with each instance that a relay was told of by another brain."""
        self._listener = listener
        self._epoch = epoch
        self._text = text
        self._decoder = msgspec.msgpack.Decoder(list[frames.FromRelay])
        self._by_channel: dict[Channel, Session] = {}
        self._unnamed: set[Channel] = set()
        """Connections whose Hello has not come."""
        self._later: list[tuple[Session, Any]] | None = []
        """News that waits until we have settled; None: we have. At most what clients of the relays have open."""
        self._serving: frames.Serving | None = None
        self._server: asyncio.Server | None = None
        self._settling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take relays in from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            partial(_Accepted, self._decoder, self._taken, self._lost, self._unnamed.add), sock=self._listener
        )
        self._settling = loop.create_task(self._settle(), name="settling")

    async def close(self) -> None:
        """Let all relays go."""
        if self._settling is not None:
            self._settling.cancel()
        if self._server is not None:
            self._server.close()
        for channel in (*self._by_channel, *self._unnamed):
            channel.close()
        await asyncio.sleep(0)

    @property
    def draining(self) -> bool:
        """A relay takes no new requests any more."""
        return any(report.draining for report in self.reports.running.values())

    # What relays have to know.

    def joined(self, member: frames.Member) -> None:
        """An instance is new, or has other values."""
        self.members[member.spec.id] = member
        self._tell_all(frames.Joined(member))

    def left(self, instance: str) -> None:
        """An instance takes nothing more."""
        if self.members.pop(instance, None) is not None:
            self._tell_all(frames.Left(instance))

    def reloaded(self) -> None:
        """Another configuration is in force."""
        text = self._text()
        if text is not None:
            self._tell_all(frames.Reloaded(text))

    def noticed(self, event: Event) -> None:
        """News of an instance: what engines can do may have changed, and what clients can be served with."""
        if isinstance(event, Observed):
            pool, member = self.gateway.pools.get(event.instance), self.members.get(event.instance)
            if pool is not None and member is not None and pool.gives_ids != member.gives_ids:
                self.joined(msgspec.structs.replace(member, gives_ids=pool.gives_ids))
        self.look()

    def look(self) -> None:
        """Tell relays if clients can be served with something else now."""
        if self._later is None:
            now = frames.Serving(self.cluster.models(), self.cluster.can_serve())
            if now != self._serving:
                self._serving = now
                self._tell_all(now)

    def _tell_all(self, frame: object) -> None:
        for session in self.up.values():
            session.channel.send(frame)
            session.channel.flush()  # before whoever asked for it has an answer: it may be our last

    # What relays say.

    def _taken(self, channel: Channel, batch: list[Any]) -> None:
        session = self._by_channel.get(channel)
        for frame in batch:
            if session is not None:
                self._take(session, frame)
            elif isinstance(frame, frames.Hello):
                session = self._hello(channel, frame)
            else:
                log.error("a relay began with %s", type(frame).__name__)
                channel.abort()
                return

    def _take(self, session: Session, frame: Any) -> None:
        try:
            if isinstance(frame, Adopted):
                session.adopt(frame)
            elif isinstance(frame, frames.Report):
                self.reports.take(session.relay, frame)
                if len(self.reports.running) >= self.relays:
                    self.complete.set()
                self.look()
            elif isinstance(frame, frames.Announced):
                session.announced = True
            elif self._later is None:
                session.take[type(frame)](frame)
            else:
                self._later.append((session, frame))
        except Exception:
            self.gateway.brain.fault(f"a relay's {type(frame).__name__} failed")

    def _hello(self, channel: Channel, hello: frames.Hello) -> Session:
        self._unnamed.discard(channel)
        if (before := self.up.get(hello.relay)) is not None:  # we have not heard of its end yet
            before.channel.abort()
            self._lost(before.channel)
        session = self._by_channel[channel] = Session(self.gateway, channel, hello)
        self.up[session.relay] = session
        self.reports.back(session.pid)
        for member in hello.members:
            self.take_over(member)
        channel.send(frames.Welcome(self._epoch, self._text()))
        for member in self.members.values():
            channel.send(frames.Joined(member))
        for member in hello.members:
            if member.spec.id not in self.members:
                channel.send(frames.Left(member.spec.id))
        if self._serving is not None:
            channel.send(self._serving)
        log.info("relay %d is there (process %d)", session.relay, session.pid)
        return session

    def _lost(self, channel: Channel) -> None:
        self._unnamed.discard(channel)
        session = self._by_channel.pop(channel, None)
        if session is None:
            return
        report = self.reports.running.get(session.relay)
        expected = report is not None and report.draining
        log.log(
            logging.INFO if expected else logging.WARNING, "relay %d is gone (process %d)", session.relay, session.pid
        )
        if self.up.get(session.relay) is session:
            del self.up[session.relay]
        self.reports.gone(session.relay, session.pid)
        if self._later is not None:
            self._later = [(one, frame) for one, frame in self._later if one is not session]
        session.lost()

    # The beginning.

    async def _settle(self) -> None:
        """Wait until the picture is whole, then take in what has come meanwhile."""
        try:
            async with asyncio.timeout(SETTLE_S_MAX):
                while not self._is_whole():
                    await asyncio.sleep(SETTLE_POLL_S)
        except TimeoutError:
            log.info("deciding with %d of %d relays", len(self.up), self.relays)
        later, self._later = self._later or [], None
        self.look()
        for session, frame in later:
            self._take(session, frame)

    def _is_whole(self) -> bool:
        views = self.cluster.instances()
        told = sum(session.announced for session in self.up.values())
        return told >= self.relays and all(view.state != State.JOINING and view.models for view in views)


class _Accepted(Channel):
    """A connection that has just come."""

    def __init__(self, decoder: Any, taken: Any, lost: Any, came: Callable[[Channel], None]) -> None:
        super().__init__(decoder, taken, lost)
        self._came_in = came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._came_in(self)
