"""A decision record as JSON for people: times as seconds from the request's arrival, candidates with their terms."""

from collections.abc import Sequence
from typing import Any

import msgspec

from isochrone.nouns.decision import Candidate, Decision
from isochrone.nouns.instant import Instant, seconds

INSTANTS = ("arrived_at", "first_token_at", "ended_at", "dispatched_at")
"""Fields of records that are instants: shown as seconds from the request's arrival."""


def as_json(decision: Decision, candidates: Sequence[Candidate], now: Instant) -> dict[str, Any]:
    """Everything known of one request. Never a word of its prompt: the record has none."""
    start = decision.arrived_at
    shown = _plain(decision, start)
    shown["arrived_ago_s"] = seconds(now - start)
    shown["ttft_s"] = _ttft_s(decision)
    shown["e2e_s"] = _since(start, decision.ended_at)
    shown["tries"] = [_plain(one, start) for one in decision.tries]
    shown["candidates"] = msgspec.to_builtins(candidates)
    return shown


def brief(decision: Decision, now: Instant) -> dict[str, Any]:
    """One line of the list."""
    return {
        "request": decision.request,
        "model": decision.model,
        "route": decision.route,
        "winner": decision.winner,
        "attempts": len(decision.tries),
        "outcome": decision.outcome or "running",
        "status": decision.status,
        "reason": decision.reason,
        "arrived_ago_s": seconds(now - decision.arrived_at),
        "queue_wait_s": decision.queue_wait_s,
        "forecast_ttft_s": decision.forecast_ttft_s,
        "ttft_s": _ttft_s(decision),
        "forecast_e2e_s": decision.forecast_e2e_s,
        "e2e_s": _since(decision.arrived_at, decision.ended_at),
    }


def _plain(struct: msgspec.Struct, start: Instant) -> dict[str, Any]:
    """Fields by name; an instant `x_at` becomes `x_s`, seconds from `start`."""
    shown: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if name in INSTANTS:
            shown[name.removesuffix("_at") + "_s"] = _since(start, value)
        elif name not in ("evidence", "tries"):
            shown[name] = msgspec.to_builtins(value)
    return shown


def _ttft_s(decision: Decision) -> float | None:
    """Streams only: of a whole answer the gateway sees no first token."""
    return _since(decision.arrived_at, decision.first_token_at) if decision.stream else None


def _since(start: Instant, end: Instant | None) -> float | None:
    return None if end is None else seconds(end - start)
