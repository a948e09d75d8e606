"""The prefix index against a naive model: a list of (slot, prefix) in the order of their last use."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.kv.hashing import BLOCK_SIZES
from isochrone.kv.index import EXACT_LEVELS, PrefixIndex

SIZE = BLOCK_SIZES[0]
CAPACITY = 12
SLOTS = 5


class Naive:
    """Per slot a list of prefixes (as tuples), least recently used first."""

    def __init__(self) -> None:
        self.slots: list[list[tuple[int, ...]]] = [[] for _ in range(SLOTS)]
        self.capacity = [CAPACITY] * SLOTS

    def insert(self, slot: int, chain: tuple[int, ...]) -> None:
        held = self.slots[slot]
        for depth in range(len(chain), 0, -1):
            prefix = chain[:depth]
            if prefix in held:
                held.remove(prefix)
            held.append(prefix)
        self.shrink(slot)

    def shrink(self, slot: int) -> None:
        self.slots[slot] = self.slots[slot][max(0, len(self.slots[slot]) - self.capacity[slot]) :]

    def hit(self, slot: int, chain: tuple[int, ...]) -> int:
        depth = 0
        while depth < len(chain) and chain[: depth + 1] in self.slots[slot]:
            depth += 1
        return depth


def hashes(chain: tuple[int, ...]) -> list[int]:
    """A block's hash stands for the block and all before it, as in `kv.hashing.chain`."""
    return [hash(chain[:depth]) for depth in range(1, len(chain) + 1)]


chains = st.lists(st.integers(0, 2), max_size=15).map(tuple)
slots = st.integers(0, SLOTS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), slots, chains),
        st.tuples(st.just("clear"), slots, st.none()),
        st.tuples(st.just("remove"), slots, st.none()),
        st.tuples(st.just("capacity"), slots, st.integers(0, 20)),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(steps, chains)
def test_hits_are_those_of_the_naive_model(steps: list[tuple[str, int, object]], asked: tuple[int, ...]) -> None:
    index, naive = PrefixIndex(capacity_bytes=CAPACITY * SIZE), Naive()
    for step, slot, value in steps:
        if step == "insert":
            assert isinstance(value, tuple)
            index.insert(slot, hashes(value))
            naive.insert(slot, value)
        elif step == "capacity":
            assert isinstance(value, int)
            index.set_capacity(slot, value * SIZE)
            naive.capacity[slot] = value
            naive.shrink(slot)
        else:
            getattr(index, step)(slot)
            naive.slots[slot] = []
            if step == "remove":
                naive.capacity[slot] = CAPACITY
        assert index.entries == sum(map(len, naive.slots))
        assert [index.used_bytes(each) for each in range(SLOTS)] == [SIZE * len(held) for held in naive.slots]
    found = index.hits(hashes(asked), range(SLOTS))
    assert found == [naive.hit(slot, asked) for slot in range(SLOTS)], "at most five slots: every level is exact"
    assert index.hits_vector(hashes(asked), SLOTS).tolist() == found


@given(st.lists(st.integers(0, 60), min_size=1, max_size=200), st.integers(1, 60))
def test_few_or_many_slots_give_the_same_hits(depths: list[int], asked: int) -> None:
    """The plain loop and numpy agree; deep levels are exact, and no depth is overstated or less than half."""
    chain = list(range(7000, 7060))
    index = PrefixIndex()
    for slot, depth in enumerate(depths):
        index.insert(slot, chain[:depth])
    true = [min(depth, asked) for depth in depths]
    found = index.hits(chain[:asked], range(len(depths)))
    assert index.hits_vector(chain[:asked], len(depths)).tolist() == found
    deepest = sorted(set(true), reverse=True)[:EXACT_LEVELS]
    for hit, depth in zip(found, true, strict=True):
        assert hit == depth if depth in deepest else hit <= depth <= 2 * hit + 1
    levels = index.match(chain[:asked])
    assert all(upper[1] | lower[1] == lower[1] for upper, lower in pairwise(levels))
