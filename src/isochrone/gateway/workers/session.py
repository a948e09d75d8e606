"""One relay at the brain's end: a stand-in for each exchange that the relay holds.

A relay's events go to the brain as if they had come up here; commands for a stand-in go back to its relay. A relay that
is lost takes its clients with it: whatever it had open ends as if they had left.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from isochrone.gateway import clock
from isochrone.gateway.app import Gateway
from isochrone.gateway.brain import Brain
from isochrone.gateway.reception import refusal
from isochrone.gateway.workers import frames
from isochrone.gateway.workers.channel import Channel
from isochrone.nouns.commands import Abort, Dispatch, Fail
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import Accepted, Adopted, Arrived, ClientLeft, Ended, FirstToken, Outcome, Progress, Stalled
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request


class Remote:
    """Stands for an exchange that a relay holds."""

    __slots__ = ("name", "output_tokens", "request", "session", "told")

    def __init__(self, session: "Session", request: Request, name: str) -> None:
        self.session = session
        self.request = request
        self.name = name
        """Its id at the relay; another one than here where two relays have clients that chose the same."""
        self.output_tokens = 0
        self.told = False
        """The relay needs no last word any more."""

    def dispatch(self, command: Dispatch) -> None:
        if command.request != self.name:
            command = msgspec.structs.replace(command, request=self.name)
        self.session.channel.send(command)

    def fail(self, error: ApiError | None) -> None:
        self.session.channel.send(Fail(self.name, error))
        self.told = True
        self.session.forget(self)

    def abort(self, command: Abort) -> None:
        self.session.channel.send(command)

    def recorded(self) -> None:
        if not self.told:
            self.session.channel.send(frames.Over(self.name))
        self.session.forget(self)

    def grant(self, lines: bytes) -> None:
        self.session.channel.send(frames.Granted(self.name, lines))

    def said_tokens(self) -> int:
        return self.output_tokens

    def sweep(self, now: Instant) -> None:
        """Limits in time are the relay's."""

    def give_up(self, error: ApiError) -> None:
        self.fail(error)


class Session:
    """One relay, as long as its connection lasts."""

    def __init__(self, gateway: Gateway, channel: Channel, hello: frames.Hello) -> None:
        assert isinstance(gateway.brain, Brain)
        self.channel = channel
        self.relay = hello.relay
        self.pid = hello.pid
        self.announced = False
        self._remotes: dict[str, Remote] = {}
        """By the relay's id."""
        self._gateway = gateway
        self._brain = gateway.brain
        self.take: dict[type, Callable[[Any], None]] = {
            Arrived: self._arrived, Ended: self._ended, Progress: self._progress, FirstToken: self._brain.submit,
            Accepted: self._brain.submit, Stalled: self._brain.submit, ClientLeft: self._client_left,
            frames.TurnedAway: self._turned_away,
        }  # fmt: skip

    def lost(self) -> None:
        """The relay is gone, and its clients with it: first those that wait, so that none of them is dispatched now."""
        for remote in list(self._remotes.values()):
            remote.told = True
            self._brain.submit(ClientLeft(remote.request.id))
        for attempt, party in list(self._brain.attempts.items()):
            if isinstance(party, Remote) and party.session is self:
                tokens = party.output_tokens
                self._brain.submit(Ended(attempt, Outcome.CLIENT_LEFT, output_tokens=tokens, why="its relay was lost"))
        for remote in list(self._remotes.values()):  # whatever the cluster said of them, nobody listens any more
            self.forget(remote)

    def forget(self, remote: Remote) -> None:
        """The request is over."""
        self._brain.requests.pop(remote.request.id, None)
        self._remotes.pop(remote.name, None)

    def adopt(self, event: Adopted) -> None:
        """An attempt that another brain has dispatched."""
        if event.instance not in self._gateway.pools:  # it left before the former brain ended: let the relay finish
            self.channel.send(frames.Over(event.request.id))
            return
        remote = self._stand_in(event.request)
        remote.output_tokens = event.output_tokens
        self._brain.attempts[event.attempt] = remote
        if self._gateway.door is not None:
            self._gateway.door.reserve(event.request)  # where the quota has no room for it, it runs all the same
        self._brain.submit(event)

    def _stand_in(self, request: Request) -> Remote:
        remote = Remote(self, request, request.id)
        while request.id in self._brain.requests:
            request.id += f".{self.relay}"
        self._brain.requests[request.id] = remote
        self._remotes[remote.name] = remote
        return remote

    def _arrived(self, event: Arrived) -> None:
        remote = self._stand_in(event.request)
        door = self._gateway.door
        if door is not None:
            error, lines = door.reserve(event.request)
            if lines:
                remote.grant(lines)
            if error is not None:
                self._refuse(remote, error)
                return
        self._brain.submit(event)

    def _refuse(self, remote: Remote, error: ApiError) -> None:
        """Over a quota: the cluster never hears of it."""
        request = remote.request
        remote.fail(error)
        refusals = self._gateway.reception.refusals
        refusals[error.code] = refusals.get(error.code, 0) + 1
        record = refusal(request.id, clock.now(), request.path, request.tenant, request.key, error.code, error.status)
        for sink in self._gateway.records:
            sink(record)

    def _ended(self, event: Ended) -> None:
        remote = self._brain.attempts.get(event.attempt)
        if isinstance(remote, Remote):
            remote.told = event.outcome in (Outcome.DONE, Outcome.CLIENT_LEFT)
        self._brain.submit(event)

    def _progress(self, event: Progress) -> None:
        remote = self._brain.attempts.get(event.attempt)
        if isinstance(remote, Remote):
            remote.output_tokens = event.output_tokens
        self._brain.submit(event)

    def _client_left(self, event: ClientLeft) -> None:
        remote = self._remotes.get(event.request)
        if remote is None:
            self.channel.send(frames.Over(event.request))
        else:
            self._brain.submit(ClientLeft(remote.request.id))

    def _turned_away(self, frame: frames.TurnedAway) -> None:
        record = refusal(frame.request, clock.now(), frame.path, frame.tenant, frame.key, frame.code, frame.status)
        for sink in self._gateway.records:
            sink(record)
