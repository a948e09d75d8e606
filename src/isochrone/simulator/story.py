"""Events and commands of a run as lines that a person can follow.

2.481930 s  request 17 arrives: 700 tokens, tenant b, may be shed after 1 s
            -> request 17 to e2, attempt 31
2.512004 s  request 17, attempt 31: first token
2.900000 s  e2: heartbeat refused
"""

from collections.abc import Iterable

from isochrone.nouns.commands import Abort, Command, Dispatch, Fail, Record, Refuse
from isochrone.nouns.events import (
    Arrived,
    ClientLeft,
    Configured,
    Ended,
    Event,
    FirstToken,
    Found,
    ModelsSeen,
    Observed,
    Probed,
    Progress,
    Verdict,
    Weighed,
    Withdrawn,
    Woke,
)
from isochrone.nouns.instant import Instant, seconds
from isochrone.nouns.request import Request

QUIET = (Progress, Woke, ModelsSeen, Observed)
"""What is told only where everything is asked for."""


class Story:
    """Collects lines; each knows the requests and instances that it is about."""

    def __init__(self, everything: bool) -> None:
        self._everything = everything
        self._requests: dict[int, str] = {}
        """Attempt -> request."""
        self._beats: dict[str, Verdict] = {}
        self.lines: list[tuple[str, str]] = []
        """(request, line); the request is empty where a line is about none."""

    def note(self, now: Instant, what: Event | Command) -> None:
        """Take one event or command in."""
        if not self._everything and self._is_quiet(what):
            return
        about, text = self._told(what)
        start = f"{seconds(now):11.6f} s  " if not isinstance(what, Command) else " " * 15 + "-> "
        self.lines.append((about, start + text))

    def of(self, request: str) -> Iterable[str]:
        """The lines about one request, and those about none: what happened to instances meanwhile."""
        mine = [place for place, (about, _) in enumerate(self.lines) if about == request]
        if not mine:
            return []
        return [line for about, line in self.lines[mine[0] : mine[-1] + 1] if about in (request, "")]

    def _is_quiet(self, what: Event | Command) -> bool:
        if isinstance(what, Probed):
            before = self._beats.get(what.instance)
            self._beats[what.instance] = what.verdict
            return what.verdict is before
        return isinstance(what, QUIET)

    def _told(self, what: Event | Command) -> tuple[str, str]:
        if isinstance(what, Dispatch):
            self._requests[what.attempt] = what.request
            return (
                what.request,
                f"request {what.request} {'goes on at' if what.continues else 'to'} {what.instance}, "
                + (f"attempt {what.attempt}"),
            )
        if isinstance(what, FirstToken | Progress | Ended | Abort):
            request = self._requests.get(what.attempt, "?")
            return request, f"request {request}, attempt {what.attempt}: {_of_attempt(what)}"
        if isinstance(what, Arrived):
            return what.request.id, _arrival(what.request)
        if isinstance(what, ClientLeft):
            return what.request, f"request {what.request}: its client leaves"
        if isinstance(what, Refuse | Fail):
            code = what.error.code if what.error is not None else "as the engine said"
            return what.request, f"request {what.request} {'refused' if isinstance(what, Refuse) else 'fails'}: {code}"
        if isinstance(what, Record):
            decision = what.decision
            return (
                decision.request,
                f"request {decision.request} is over: {decision.outcome} {decision.reason}".rstrip(),
            )
        return "", _of_instance(what)


def _of_attempt(what: FirstToken | Progress | Ended | Abort) -> str:
    if isinstance(what, FirstToken):
        return "first token"
    if isinstance(what, Progress):
        return f"{what.output_tokens} tokens"
    if isinstance(what, Abort):
        return f"abort{' if it can go on elsewhere' if what.if_movable else ''}, {what.why}"
    more = [f"{what.output_tokens} tokens"]
    if what.delivered:
        more.append("some of it delivered" if what.usage is None else "all delivered")
    if what.resumable:
        more.append("can go on")
    return f"{what.outcome.value}, {', '.join(more)}"


def _of_instance(what: object) -> str:
    if isinstance(what, Probed):
        return f"{what.instance}: heartbeat {what.verdict.value}"
    if isinstance(what, Found):
        return f"{what.spec.id} joins"
    if isinstance(what, Withdrawn):
        return f"{what.instance} is {'drained' if what.drain else 'removed at once'}"
    if isinstance(what, Weighed):
        return f"{what.instance}: weight {what.weight:g}"
    if isinstance(what, Observed):
        seen = what.snapshot
        usage = "?" if seen.kv_usage_ratio is None else f"{seen.kv_usage_ratio:.2f}"
        return f"{what.instance}: scraped, {seen.running} run, {seen.waiting} wait, KV {usage}"
    if isinstance(what, Configured):
        return f"settings: {of_settings(what.settings)}"
    return type(what).__name__


def _arrival(request: Request) -> str:
    parts = [f"{request.hashed_bytes // 4} tokens", f"tenant {request.tenant}"]
    if request.priority:
        parts.append(f"priority {request.priority}")
    if request.slo is not None and request.slo.ttft_s is not None:
        parts.append(
            f"{'may be shed' if request.slo.sheddable else 'wants its first token'} after {request.slo.ttft_s:g} s"
        )
    if not request.stream:
        parts.append("not streamed")
    return f"request {request.id} arrives: {', '.join(parts)}"


def of_settings(settings: object) -> str:
    """Settings that are not their defaults, in one line."""
    fresh = type(settings)()
    names: tuple[str, ...] = settings.__struct_fields__  # type: ignore[attr-defined]
    changed = [(name, getattr(settings, name)) for name in names if getattr(settings, name) != getattr(fresh, name)]
    return ", ".join(f"{name}={sorted(value) if isinstance(value, frozenset) else value}" for name, value in changed)
