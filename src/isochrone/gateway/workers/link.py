"""The relay's end: stands where the brain would be, and carries on alone while there is none.

An exchange hands its events to `submit` and is handed commands, as by a `Brain`. Of every open request the link knows
what has become of it, so that a brain which was started anew can be told:

    attempt under way        goes on, whatever happens to the brain; told to the next one as Adopted
    two of them (hedging)    the first of the two to give a byte wins, as always; where none has by the time there is a
                             next brain, the one that was asked second is ended and the other is told as Adopted
    attempt ended meanwhile  told as Adopted and Ended, for its record; what is next, if anything, waits for the brain
    not dispatched yet       told as Arrived, as if it had just come

Who waits for a brain that is away waits at most `brain_wait_s_max`, and then gets 503 with Retry-After.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from isochrone.gateway import clock
from isochrone.gateway.brain import Party
from isochrone.gateway.workers import frames
from isochrone.gateway.workers.channel import Channel
from isochrone.gateway.workers.open import Attempt, Open
from isochrone.nouns.commands import Abort, Dispatch, Fail
from isochrone.nouns.decision import Decision
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import Arrived, ClientLeft, Ended, Event, FirstToken, Outcome, Progress
from isochrone.nouns.instant import Instant, nanoseconds

RETRY_S = 0.02
"""While the brain is away: how often it is looked for, and how often those who wait are looked at."""
UNTOLD_REQUESTS_MAX = 20_000
"""Requests that ended while the brain was away and that the next one is told of; further ones have no record."""
RETRY_AFTER_S = 1
FINAL = frozenset({Outcome.DONE, Outcome.CLIENT_LEFT})
"""Outcomes after which neither side says anything more about the request."""

log = logging.getLogger("isochrone.relay")


class BrainLink:
    """What a relay's gateway has for a brain and for a cluster."""

    def __init__(self, relay: int, pid: int, path: str, wait_s_max: float, text: str | None = None) -> None:
        """`path`: of the brain's Unix socket. `text`: the configuration file in force."""
        self.relay = relay
        self.wait_s_max = wait_s_max
        self.now: Instant = clock.now()
        self.requests: dict[str, Party] = {}
        """Requests whose client waits for something, by id."""
        self.attempts: dict[int, Party] = {}
        """Attempts under way: one for each open request, or two."""
        self.records: list[Callable[[Decision], None]] = [self._turned_away]
        """Only of requests that are refused here; all others are recorded by the brain."""
        self.unrecorded: list[Callable[[str], None]] = []
        self.faults = 0
        self.unanswered = 0
        """Requests that waited for the brain in vain."""
        self.untold = 0
        """Requests without a record, because too many ended while the brain was away."""
        self.members: dict[str, frames.Member] = {}
        """Instances, as the brain last told."""
        self.joined: Callable[[frames.Member], None] = _nobody
        self.left: Callable[[str], None] = _nobody
        self.configured: Callable[[str], None] = _nobody
        """Called with the configuration's text when another one is in force."""
        self.is_up = False
        """A brain listens, and knows all that it was not there for."""
        self._pid = pid
        self._path = path
        self._text = text
        self._epoch = 0
        self._serving = frames.Serving({}, False)
        self._told_serving = asyncio.Event()
        self._open: dict[str, Open] = {}
        self._channel: Channel | None = None
        self._away_since: Instant = self.now
        self._went = asyncio.Event()
        self._went.set()
        self._task: asyncio.Task[None] | None = None
        self._take: dict[type, Callable[[Any], None]] = {
            Dispatch: self._dispatch, Fail: self._fail, Abort: self._abort, frames.Over: self._over,
            frames.Granted: self._granted, frames.Serving: self._is_serving, frames.Joined: self._joined,
            frames.Left: self._left, frames.Welcome: self._welcome, frames.Reloaded: self._reloaded,
        }  # fmt: skip

    # What the gateway asks of a cluster.

    def models(self) -> dict[str, int | None]:
        """Model -> longest context, as the brain last told."""
        return self._serving.models

    def can_serve(self) -> bool:
        """Some instance took requests when the brain last told."""
        return self._serving.ready

    # What exchanges ask of a brain.

    def submit(self, event: Event) -> None:
        """Pass an event of a request on, or keep in mind what it says until there is a brain."""
        self.now = now = clock.now()
        if isinstance(event, Arrived):
            event = Arrived(event.request, self.relay, self._epoch)
            self._open[event.request.id] = Open(event.request, now)
        elif isinstance(event, Ended):
            self._ended(event, now)
            return
        elif isinstance(event, Progress):
            if (attempt := self._attempt(event.attempt)) is not None:
                attempt.output_tokens = event.output_tokens
        elif isinstance(event, FirstToken):
            if (attempt := self._attempt(event.attempt)) is not None:
                attempt.first_token_at, attempt.output_tokens = now, 1
        elif isinstance(event, ClientLeft) and not self.is_up:
            self._left_while_away(event.request)
        self._say(event)

    def knows(self, request: str) -> bool:
        """The id is in use, here or at the brain."""
        return request in self.requests or request in self._open

    @property
    def open_requests(self) -> int:
        """Requests that the brain has not been told, or has not told, the end of."""
        return len(self._open)

    def fault(self, what: str) -> None:
        """An exception of ours was caught: count it, log it, go on."""
        self.faults += 1
        log.exception("%s", what)

    def say(self, frame: object) -> None:
        """Tell the brain something about this process; while it is away nobody hears it."""
        self._say(frame)

    # The connection.

    async def start(self) -> None:
        """Look for the brain from now on; returns once it has told what can be served with."""
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="brain")
        await self._told_serving.wait()

    def close(self) -> None:
        """Let the brain go."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        channel, self._channel, self.is_up = self._channel, None, False
        if channel is not None:
            channel.close()

    async def _keep(self) -> None:
        """Find the brain whenever it is away."""
        decoder = msgspec.msgpack.Decoder(list[frames.FromBrain])
        loop = asyncio.get_running_loop()
        while True:
            if self._channel is None:
                try:
                    _, self._channel = await loop.create_unix_connection(
                        partial(Channel, decoder, self._taken, self._lost), self._path
                    )
                    self._channel.send(frames.Hello(self.relay, self._pid, tuple(self.members.values())))
                except OSError:
                    self._channel = None
            if self.is_up:
                self._went.clear()
                await self._went.wait()
            else:
                self._look_at_waiting()
                await asyncio.sleep(RETRY_S)

    def _lost(self, channel: Channel) -> None:
        if channel is not self._channel:
            return
        if self.is_up:
            self._away_since = clock.now()
            log.warning("the brain is away; %d requests go on or wait", len(self._open))
        self._channel, self.is_up = None, False
        self._went.set()

    def _taken(self, channel: Channel, batch: list[Any]) -> None:
        self.now = clock.now()
        for frame in batch:
            try:
                self._take[type(frame)](frame)
            except Exception:
                self.fault(f"carrying out {type(frame).__name__} failed")

    def _say(self, frame: object) -> None:
        if self.is_up and self._channel is not None:
            self._channel.send(frame)

    def _welcome(self, frame: frames.Welcome) -> None:
        """Tell the brain all that it was not there for."""
        assert self._channel is not None
        self._epoch = frame.epoch
        if frame.text is not None and frame.text != self._text:
            self._reloaded(frames.Reloaded(frame.text))
        self._forget_leavers()
        opened = list(self._open.values())
        for one in opened:
            if one.rival is not None:
                second = one.rival.command.attempt
                self.attempts[second].abort(Abort(second, "the brain was started anew"))
            if one.attempt is not None:
                self._channel.send(one.adopted(self.relay, self._epoch))
        self._channel.send(frames.Announced())
        for one in opened:
            if one.attempt is None:
                self._channel.send(one.arrived(self.relay, self._epoch, self.now))
            elif (ended := one.attempt.ended) is not None:
                self._channel.send(ended)
                if ended.outcome in FINAL:
                    del self._open[one.request.id]
        self.is_up = True
        if self.untold:
            log.warning("%d requests that ended meanwhile have no record", self.untold)
            self.untold = 0
        log.info("the brain is there (epoch %d), told of %d requests", frame.epoch, len(opened))

    # Requests.

    def _attempt(self, number: int) -> Attempt | None:
        """The attempt of that number, if it is under way."""
        party = self.attempts.get(number)
        one = self._open.get(party.request.id) if party is not None else None
        return one.find(number) if one is not None else None

    def _ended(self, event: Ended, now: Instant) -> None:
        party = self.attempts.pop(event.attempt, None)
        if party is not None:
            name = party.request.id
            one = self._open.get(name)
            if one is not None:
                one.ended(event, now)
                if one.waits and event.outcome in FINAL and (self.is_up or self._is_full()):
                    self.untold += not self.is_up
                    del self._open[name]
            elif event.outcome not in FINAL:  # the brain has said Over
                if (party := self.requests.get(name)) is not None:
                    party.fail(None)
                return
        self._say(event)

    def _is_full(self) -> bool:
        return len(self._open) > UNTOLD_REQUESTS_MAX + len(self.requests)

    def _left_while_away(self, request: str) -> None:
        one = self._open.get(request)
        if one is None:
            return
        if one.attempt is None:
            del self._open[request]
        elif (ended := one.attempt.ended) is not None and ended.outcome not in FINAL:
            one.attempt.ended = msgspec.structs.replace(ended, outcome=Outcome.CLIENT_LEFT)

    def _forget_leavers(self) -> None:
        """Clients that had left, and whose leaving the former brain did not live to confirm."""
        for name in list(self._open):
            if name not in self.requests:
                self._left_while_away(name)

    def _look_at_waiting(self) -> None:
        """Give up those who have waited too long for something that only the brain can say."""
        now = clock.now()
        for name, one in list(self._open.items()):
            party = self.requests.get(name)
            if not one.waits or party is None:
                continue
            longest = nanoseconds(one.waits_s_max(self.wait_s_max))
            if now - max(one.waits_since, self._away_since) > longest:
                del self._open[name]
                self.unanswered += 1
                party.fail(away(self.wait_s_max))

    def _dispatch(self, command: Dispatch) -> None:
        one, party = self._open.get(command.request), self.requests.get(command.request)
        if one is None or party is None:  # the client has left meanwhile
            self._open.pop(command.request, None)
            self._say(Ended(command.attempt, Outcome.CLIENT_LEFT))
            return
        one.sent(command, self.now, party.said_tokens() if command.continues else None)
        self.attempts[command.attempt] = party
        try:
            party.dispatch(command)
        except Exception:
            self.submit(Ended(command.attempt, Outcome.FAILED, why="the gateway failed"))
            raise

    def _fail(self, command: Fail) -> None:
        self._open.pop(command.request, None)
        if (party := self.requests.get(command.request)) is not None:
            party.fail(command.error)

    def _abort(self, command: Abort) -> None:
        if (party := self.attempts.get(command.attempt)) is not None:
            party.abort(command)

    def _over(self, frame: frames.Over) -> None:
        one = self._open.pop(frame.request, None)
        if one is not None and not one.waits:
            return  # the brain does not know its instance any more: it ends as it can
        if (party := self.requests.get(frame.request)) is not None:
            party.recorded()

    def _granted(self, frame: frames.Granted) -> None:
        if (party := self.requests.get(frame.request)) is not None:
            party.grant(frame.lines)

    def _turned_away(self, record: Decision) -> None:
        self._say(
            frames.TurnedAway(record.request, record.path, record.tenant, record.key, record.reason, record.status)
        )

    # What there is.

    def _is_serving(self, frame: frames.Serving) -> None:
        self._serving = frame
        self._told_serving.set()

    def _joined(self, frame: frames.Joined) -> None:
        self.members[frame.member.spec.id] = frame.member
        self.joined(frame.member)

    def _left(self, frame: frames.Left) -> None:
        if self.members.pop(frame.instance, None) is not None:
            self.left(frame.instance)

    def _reloaded(self, frame: frames.Reloaded) -> None:
        self._text = frame.text
        self.configured(frame.text)


def _nobody(what: Any) -> None:
    """Until somebody wants to hear of it."""


def away(waited_s: float) -> ApiError:
    """503: the process that decides is being started anew."""
    return ApiError(
        503,
        "service_unavailable",
        "brain_away",
        f"The gateway's deciding process is being started anew and was not back within {waited_s:g} s. "
        f"Try again in {RETRY_AFTER_S} s.",
        None,
        RETRY_AFTER_S,
    )
