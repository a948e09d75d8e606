"""The limit that a client sets for its whole request (`Request.limit_s`), from arrival to the last byte.

A request that cannot meet it is refused at once, and a held one as soon as that is so: even an instance without other
work could no longer give the first token in time. While an attempt runs the relay watches the time (`Limits`); what it
ends for that is no fault of the instance and is not tried again.
"""

import msgspec

from isochrone.cluster.world import Flow, World
from isochrone.nouns import errors
from isochrone.nouns.commands import Limits
from isochrone.nouns.errors import ApiError
from isochrone.nouns.instant import Instant, nanoseconds, seconds
from isochrone.scheduling.admission import shed_at as ttft_lost_at
from isochrone.scheduling.price import own_work_s

LIMIT = "deadline_s"
"""The field of `Limits` that ran out, as the relay reports it."""


def latest_start(flow: Flow, least_work_s: float) -> Instant | None:
    """From when on the request cannot meet its limit any more; None: it has none."""
    limit_s = flow.request.limit_s
    if limit_s is None:
        return None
    return flow.decision.arrived_at + nanoseconds(limit_s - (least_work_s if flow.pool.warm else 0.0))


def limits_for(world: World, now: Instant, flow: Flow) -> Limits:
    """The limits of an attempt that begins now."""
    limit_s = flow.request.limit_s
    if limit_s is None:
        return world.limits
    left_s = limit_s - seconds(now - flow.decision.arrived_at)
    return msgspec.structs.replace(world.limits, deadline_s=max(0.0, left_s))


def least_work_s(flow: Flow) -> float:
    """What the prompt takes at least, on the instance that has most of it cached."""
    ask, hit, places = flow.ask, flow.ask.hits, flow.pool.places
    if places is not None:
        return places.least_work_s(ask.prompt_tokens, hit)
    work = (
        own_work_s(ask.prompt_tokens, int(hit[i]) if hit is not None else 0, row)
        for i, row in enumerate(flow.pool.rows)
    )
    return min(work, default=0.0)


def shed_at(flow: Flow, least_s: float) -> Instant | None:
    """From when on it makes no sense to hold the request; an answer that is under way has no TTFT to miss."""
    latest = latest_start(flow, least_s)
    sheds = flow.pool.warm and flow.ask.sheddable and not flow.continues
    late = ttft_lost_at(flow.slo, flow.decision.arrived_at, least_s) if sheds else None
    return latest if late is None else late if latest is None else min(late, latest)


def is_too_late(now: Instant, flow: Flow) -> bool:
    """Whether the request cannot meet its client's limit any more."""
    latest = latest_start(flow, least_work_s(flow))
    return latest is not None and now > latest


def too_late(flow: Flow) -> ApiError:
    """What its client is told."""
    assert flow.request.limit_s is not None
    return errors.deadline_exceeded(flow.request.limit_s, bool(flow.ordinal))
