"""A workload at another rate, and with another seed.

More load is k copies of the workload beside each other, each with prefixes and sessions of its own and begun a little
later than the one before. Compressing time instead would shorten the distance between uses of a prefix, and make any
cache look better; `time_scale` does that, and the report says so. Less load is a part of one copy: whole sessions are
left out where there are sessions.
"""

import itertools
import math
import random
from dataclasses import dataclass, replace

import msgspec

from isochrone.simulator.workload import CALLS_MAX, BadWorkload, Call, Workload

SHIFT_S_MAX = 60.0
"""Copies begin up to this much later, drawn evenly: without it all copies would have their bursts at once."""
COPIES_MAX = 4000
"""Copies of a workload: their numbers stay below the ids of blocks that nobody shares (`simulator/requests.py`)."""
TICK_SHARE = 0.5
"""With fewer distinct arrival times than this share of the requests, times are ticks of the recording."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is taken of a workload."""

    start_s: float = 0.0
    end_s: float | None = None
    """Seconds from the workload's first arrival; the end is not in it; None: to the last."""
    requests: int | None = None
    """At most so many, the first ones."""


WHOLE = Part()


def part_of(workload: Workload, part: Part) -> Workload:
    """That part, moved to the start of time. Raises BadWorkload where nothing is in it."""
    if part == WHOLE:
        return workload
    start, end = round(part.start_s * 1e9), math.inf if part.end_s is None else part.end_s * 1e9
    inside = [call for call in workload.calls if start <= call.at < end][: part.requests]
    if not inside:
        raise BadWorkload(f"no request arrives in that part of the workload, which lasts {workload.seconds:,.0f} s")
    calls = [msgspec.structs.replace(call, at=call.at - start) for call in inside]
    note = f"{len(calls):,} of its {len(workload.calls):,} requests"
    if (part.start_s, part.end_s) != (WHOLE.start_s, WHOLE.end_s):
        note += f", from {part.start_s:g} s to {'the end' if part.end_s is None else f'{part.end_s:g} s'}"
    return replace(workload, calls=calls, notes=[*workload.notes, note])


def shaped(workload: Workload, seed: int, rate_scale: float = 1.0, time_scale: float = 1.0) -> Workload:
    """The workload as one seed sees it."""
    if not 0 < rate_scale <= COPIES_MAX:
        raise BadWorkload(f"rate scale {rate_scale:g}: expected more than 0, at most {COPIES_MAX:,}")
    chance = random.Random(f"shape {seed}")
    if len(workload.calls) * rate_scale > CALLS_MAX:
        raise BadWorkload(f"{rate_scale:g} times {len(workload.calls):,} requests are more than {CALLS_MAX:,}")
    notes = list(workload.notes)
    tick_ns = _tick(workload.calls)
    if tick_ns:
        notes.append(f"arrivals recorded in ticks of {tick_ns / 1e9:g} s are spread evenly within them")
    copies = math.ceil(rate_scale)
    calls: list[Call] = []
    for copy in range(copies):
        shift = round(chance.random() * min(SHIFT_S_MAX, workload.seconds / 10) * 1e9) if copy else 0
        keep = min(1.0, rate_scale - copy)
        calls += _one_copy(workload.calls, chance, copy, shift, keep, tick_ns)
    if rate_scale != 1.0:
        notes.append(f"{rate_scale:g} times the rate, as salted copies")
    if time_scale != 1.0:
        notes.append(f"time compressed by {time_scale:g}: prefixes are used again sooner than they were")
        for call in calls:
            call.at = round(call.at / time_scale)
            if call.gap is not None:
                call.gap = round(call.gap / time_scale)
    calls.sort(key=_by_time)
    return replace(workload, calls=calls, notes=notes)


def _one_copy(
    calls: list[Call], chance: random.Random, copy: int, shift: int, keep: float, tick_ns: int
) -> list[Call]:  # fmt: skip
    sessions: dict[int, bool] = {}
    made = []
    for call in calls:
        if keep < 1.0:
            if call.session >= 0:
                kept = sessions.get(call.session)
                if kept is None:
                    kept = sessions[call.session] = chance.random() < keep
            else:
                kept = chance.random() < keep
            if not kept:
                continue
        spread = round(chance.random() * tick_ns) if tick_ns else 0
        made.append(msgspec.structs.replace(call, at=call.at + shift + spread, copy=copy))
    return made


def _tick(calls: list[Call]) -> int:
    """Length of the recording's ticks in nanoseconds; 0 where times are not in ticks."""
    times = sorted({call.at for call in calls})
    if len(times) < 2 or len(times) > TICK_SHARE * len(calls):
        return 0
    return min(after - before for before, after in itertools.pairwise(times))


def _by_time(call: Call) -> int:
    return call.at
