"""Paged memory: sharing, eviction order, and that no block is ever lost or counted twice."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isochrone.twin.blocks import BlockPool


def test_a_block_that_is_let_go_can_be_found_until_its_place_is_needed() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.name(first, 11)
    pool.name(second, 12)
    pool.give_back([first, second])
    assert pool.free == 3
    assert pool.find([11, 12, 13], most=9) == [first, second]
    pool.take(2)  # the block never used, then the tail of the prefix
    assert pool.find([11, 12], most=9) == [first]
    assert pool.evictions == 1


def test_find_stops_at_the_first_gap_and_at_the_most_asked_for() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    for block, value in zip(blocks, (1, 2, 3), strict=True):
        pool.name(block, value)
    assert pool.find([1, 9, 3], most=9) == blocks[:1]
    assert pool.find([1, 2, 3], most=2) == blocks[:2]


def test_shared_blocks_count_once_and_stay_while_one_user_is_left() -> None:
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.name(blocks[0], 5)
    pool.share(blocks)
    assert (pool.used, pool.free) == (1, 1)
    pool.give_back(blocks)
    assert pool.used == 1
    pool.give_back(blocks)
    assert (pool.used, pool.free) == (0, 2)


def test_reviving_cached_blocks_needs_room_too() -> None:
    pool = BlockPool(2)
    blocks = pool.take(2)
    pool.name(blocks[0], 5)
    pool.give_back(blocks)
    assert pool.fits(blocks[:1], fresh=1)
    assert not pool.fits(blocks[:1], fresh=2)


def test_the_same_content_twice_keeps_the_older_block_findable() -> None:
    pool = BlockPool(2)
    older, younger = pool.take(2)
    pool.name(older, 7)
    pool.name(younger, 7)
    assert pool.find([7], most=1) == [older]
    assert pool.cached == 1


class Blocks(RuleBasedStateMachine):
    """Any order of takes, shares and returns, against a naive account of who holds what."""

    TOTAL = 12

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.TOTAL)
        self.held: list[list[int]] = []
        self.next_hash = 0

    @rule(count=st.integers(0, 5))
    def take(self, count: int) -> None:
        if count <= self.pool.free:
            blocks = self.pool.take(count)
            for block in blocks:
                self.pool.name(block, self.next_hash)
                self.next_hash += 1
            self.held.append(blocks)

    @rule(hashes=st.lists(st.integers(0, 40), max_size=4))
    def share(self, hashes: list[int]) -> None:
        found = self.pool.find(hashes, most=4)
        if self.pool.fits(found, 0):
            self.pool.share(found)
            self.held.append(found)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.pool.give_back(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def used_and_free_make_the_total(self) -> None:
        distinct = {block for blocks in self.held for block in blocks}
        assert self.pool.used == len(distinct)
        assert self.pool.used + self.pool.free == self.TOTAL
        assert self.pool.cached <= self.TOTAL

    def teardown(self) -> None:
        for blocks in self.held:
            self.pool.give_back(blocks)
        assert self.pool.free == self.TOTAL


Blocks.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestBlocks = Blocks.TestCase
