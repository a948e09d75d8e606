"""The approximate prefix index."""

import pytest

from isochrone.kv.hashing import BLOCK_SIZES, chain
from isochrone.kv.index import EVICTION_BATCH, EXACT_LEVELS, PrefixIndex

SYSTEM = list(chain(1, b"system prompt" * 200))
ONE = [*SYSTEM, *range(100, 120)]
TWO = [*SYSTEM, *range(200, 210)]


def test_depth_of_the_shared_prefix() -> None:
    index = PrefixIndex()
    index.insert(0, ONE)
    index.insert(3, TWO)
    assert index.hits(ONE, [0, 1, 3]) == [len(ONE), 0, len(SYSTEM)]
    assert index.hits(TWO, [3, 0]) == [len(TWO), len(SYSTEM)]
    assert index.match(ONE) == [(len(ONE), 0b0001), (len(SYSTEM), 0b1001)]
    assert index.hits_vector(ONE, 5).tolist() == [len(ONE), 0, 0, len(SYSTEM), 0]


@pytest.mark.parametrize("blocks", [[], [7], [7, *SYSTEM]])
def test_no_match(blocks: list[int]) -> None:
    index = PrefixIndex()
    index.insert(0, ONE)
    assert index.match(blocks) == []
    assert index.hits(blocks, [0]) == [0]
    assert index.hits_vector(blocks, 3).tolist() == [0, 0, 0]


def test_a_small_vector_leaves_out_higher_slots() -> None:
    index = PrefixIndex()
    index.insert(900, ONE)
    index.insert(1, ONE)
    assert index.hits_vector(ONE, 2).tolist() == [0, len(ONE)]


def test_least_recently_used_goes_first_and_tails_before_heads() -> None:
    size = BLOCK_SIZES[0]
    index = PrefixIndex(capacity_bytes=4 * size)
    index.insert(0, [1, 2])
    index.insert(0, [3, 4])
    index.insert(0, [1, 2])  # used again: now [3, 4] is the oldest
    index.insert(0, [5])
    assert index.hits([1, 2], [0]) == [2]
    assert index.hits([3, 4], [0]) == [1]
    assert index.used_bytes(0) == 4 * size


def test_a_prompt_longer_than_the_cache_keeps_its_head() -> None:
    index = PrefixIndex(capacity_bytes=3 * BLOCK_SIZES[0])
    index.insert(0, [1, 2, 3, 4, 5])
    assert index.hits([1, 2, 3, 4, 5], [0]) == [3]


def test_capacity_is_set_by_slot_and_takes_effect_at_once() -> None:
    size = BLOCK_SIZES[0]
    index = PrefixIndex()
    index.insert(0, [1, 2, 3])
    index.insert(1, [1, 2, 3])
    index.set_capacity(0, size)
    assert index.hits([1, 2, 3], [0, 1]) == [1, 3]
    index.set_capacity(7, size)  # before its first prompt
    index.insert(7, [1, 2, 3])
    assert index.hits([1, 2, 3], [7]) == [1]


def test_a_restarted_instance_holds_nothing_and_keeps_its_capacity() -> None:
    index = PrefixIndex()
    index.set_capacity(0, BLOCK_SIZES[0])
    index.insert(0, [1, 2])
    index.insert(1, [1, 2])
    index.clear(0)
    assert index.hits([1, 2], [0, 1]) == [0, 2]
    index.insert(0, [1, 2])
    assert index.hits([1, 2], [0]) == [1]


def test_a_removed_slot_starts_afresh() -> None:
    index = PrefixIndex()
    index.set_capacity(0, BLOCK_SIZES[0])
    index.insert(0, [1, 2])
    index.remove(0)
    assert (index.entries, index.used_bytes(0)) == (0, 0)
    index.insert(0, [1, 2])
    assert index.hits([1, 2], [0]) == [2]
    index.remove(5)  # never heard of: nothing to do


def test_entries_have_a_hard_limit_that_the_fullest_slot_pays_for() -> None:
    limit = 2 * EVICTION_BATCH
    index = PrefixIndex(entries_max=limit)
    index.insert(1, [1, 2, 3])
    for first in range(0, 10 * limit, 10):
        index.insert(0, list(range(first + 100, first + 110)))
        assert index.entries <= limit
    assert index.hits([1, 2, 3], [1]) == [3]
    assert index.entries >= limit - EVICTION_BATCH - 10


def test_deep_levels_are_exact_and_the_rest_is_never_overstated() -> None:
    index = PrefixIndex()
    chain_of = list(range(1000, 1100))
    for slot in range(40):
        index.insert(slot, chain_of[: 2 * slot + 1])
    true = [2 * slot + 1 for slot in range(40)]
    found = index.hits(chain_of, range(40))
    assert found[-EXACT_LEVELS:] == true[-EXACT_LEVELS:]
    assert all(hit <= depth < 2 * hit + 2 for hit, depth in zip(found, true, strict=True))
