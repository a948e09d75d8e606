"""A prompt that fits only an empty instance gets one: by reservation.

A prompt of half an instance's KV memory finds room on no busy pool: wherever one request ends, several small ones have
long gone in. Sent all the same, it would wait inside the engine, at the head of its line, with everything behind it.
So where a prompt's KV need exceeds what is free on every instance, but not what one of them holds, the instance that
is nearest to having room takes nothing else until it has. One at a time in a pool, the next by the queue's key; and for
RESERVED_NS at most, then the prompt goes there as it is, and the engine sees to it.
"""

from collections.abc import Sequence

import msgspec

from isochrone.instances.table import Instance
from isochrone.nouns.instant import SECOND, Instant
from isochrone.scheduling.price import Row

LARGE_RATIO = 0.1
"""Prompts below this share of the smallest KV memory of the pool are never asked about: they find room soon enough."""
RESERVED_NS = 30 * SECOND
"""Longest time that an instance is kept from others."""

NEVER_LARGE = 1 << 62


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """One instance kept for one request."""

    request: str
    slot: int
    since: Instant

    def is_late(self, now: Instant) -> bool:
        return now - self.since >= RESERVED_NS


class Room(msgspec.Struct, frozen=True, gc=False):
    """Where a large prompt finds room, by position."""

    fits_now: list[bool]
    """Enough KV memory is free, or it is unknown how much there is, or nobody runs there."""
    fits_empty: list[bool]

    @property
    def somewhere_now(self) -> bool:
        return any(self.fits_now)

    @property
    def only_empty(self) -> bool:
        """Nowhere now, but somewhere once it is empty."""
        return not any(self.fits_now) and any(self.fits_empty)


def large_from(members: Sequence[Instance]) -> int:
    """Prompt tokens from which room is looked at in a pool of these; no prompt is that long where none has told its
    KV size."""
    capacities = [
        instance.snapshot.kv_capacity_tokens
        for instance in members
        if instance.snapshot is not None and instance.snapshot.kv_capacity_tokens
    ]
    return max(1, int(LARGE_RATIO * min(capacities))) if capacities else NEVER_LARGE


def room(
    prompt_tokens: int, hits: Sequence[int] | None, rows: Sequence[Row], members: Sequence[Instance], hard_ratio: float
) -> Room:
    """Compare what the prompt needs on each instance with what is free there, and with what there is."""
    now, empty = [], []
    for position, (row, instance) in enumerate(zip(rows, members, strict=True)):
        need = prompt_tokens - (int(hits[position]) if hits is not None else 0)
        capacity = instance.snapshot.kv_capacity_tokens if instance.snapshot is not None else None
        usage = row.kv_usage_ratio
        if capacity is None or usage is None:
            now.append(True)
            empty.append(True)
            continue
        holds = prompt_tokens <= capacity
        empty.append(holds)
        now.append(row.idle or (holds and need <= (min(hard_ratio, 1.0) - usage) * capacity))
    return Room(now, empty)


def nearest_to_room(rows: Sequence[Row], members: Sequence[Instance], may: Sequence[bool]) -> int | None:
    """Position of the instance with the least KV tokens left to free, among those that may; ties by position."""
    best, least = None, 0.0
    for position, (row, instance) in enumerate(zip(rows, members, strict=True)):
        if not may[position]:
            continue
        capacity = instance.snapshot.kv_capacity_tokens if instance.snapshot is not None else None
        used = (row.kv_usage_ratio or 0.0) * (capacity or 0)
        if best is None or used < least:
            best, least = position, used
    return best
