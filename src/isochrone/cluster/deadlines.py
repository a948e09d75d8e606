"""The limit that a client sets for its whole request (`Request.limit_s`), from arrival to the last byte.

A request that cannot meet it is refused at once, and a held one as soon as that is so: even an instance without other
work could no longer give the first token in time. While an attempt runs the relay watches the time (`Limits`); what it
ends for that is no fault of the instance and is not tried again.
"""

import msgspec

from isochrone.cluster.world import Flow, World
from isochrone.nouns.commands import Limits
from isochrone.nouns.instant import Instant, nanoseconds, seconds

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
