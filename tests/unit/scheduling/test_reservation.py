"""Where a large prompt finds room."""

import msgspec

from isochrone.instances.table import Instance
from isochrone.nouns.instance import Snapshot
from isochrone.nouns.settings import Settings
from isochrone.scheduling.price import Row
from isochrone.scheduling.reservation import NEVER_LARGE, large_from, nearest_to_room, room
from tests.support.rows import make_pool


def two(usages: tuple[float | None, float | None], capacity: int | None = 10_000) -> tuple[list[Row], list[Instance]]:
    pool = make_pool(2, 3)
    rows = [
        msgspec.structs.replace(row, kv_usage_ratio=usage, running=5)
        for row, usage in zip(pool.rows, usages, strict=True)
    ]
    for instance in pool.members:
        instance.snapshot = Snapshot(engine="vllm", kv_capacity_tokens=capacity)
    return rows, pool.members


def test_room_is_what_is_free_below_the_hard_limit() -> None:
    rows, members = two((0.5, 0.9))
    hard = Settings().kv_hard_ratio
    assert room(4_000, None, rows, members, hard).fits_now == [True, False]
    assert room(5_000, None, rows, members, hard).only_empty
    assert room(5_000, [1_000, 0], rows, members, hard).fits_now == [True, False], "what is cached needs no room"
    assert not room(10_001, None, rows, members, hard).only_empty, "it fits nowhere: not for us to say"


def test_unknown_memory_has_room() -> None:
    rows, members = two((None, None))
    assert room(1_000_000, None, rows, members, 0.97).somewhere_now
    rows, members = two((0.5, 0.5), None)
    assert room(1_000_000, None, rows, members, 0.97).somewhere_now
    assert large_from(members) == NEVER_LARGE


def test_large_begins_at_a_tenth_of_the_smallest_memory() -> None:
    _, members = two((0.5, 0.5))
    assert large_from(members) == 1_000


def test_the_one_with_least_to_free_is_kept() -> None:
    rows, members = two((0.9, 0.6))
    assert nearest_to_room(rows, members, [True, True]) == 1
    assert nearest_to_room(rows, members, [True, False]) == 0
    assert nearest_to_room(rows, members, [False, False]) is None
