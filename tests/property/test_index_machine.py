"""The prefix index against a naive one, step by step: after each, every prompt that was ever sent is looked up."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isochrone.kv.index import PrefixIndex
from tests.property.test_prefix_index import CAPACITY, SIZE, SLOTS, Naive, hashes

slots = st.integers(0, SLOTS - 1)
chains = st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple)
"""Few different blocks, so that prompts share their beginnings."""


class Index(RuleBasedStateMachine):
    """Both kinds of index, told the same."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(capacity_bytes=CAPACITY * SIZE)
        self.naive = Naive()
        self.sent: set[tuple[int, ...]] = set()

    @rule(slot=slots, chain=chains)
    def insert(self, slot: int, chain: tuple[int, ...]) -> None:
        self.index.insert(slot, hashes(chain))
        self.naive.insert(slot, chain)
        self.sent.add(chain)

    @rule(slot=slots, blocks=st.integers(0, 20))
    def resize(self, slot: int, blocks: int) -> None:
        self.index.set_capacity(slot, blocks * SIZE)
        self.naive.capacity[slot] = blocks
        self.naive.shrink(slot)

    @rule(slot=slots)
    def clear(self, slot: int) -> None:
        self.index.clear(slot)
        self.naive.slots[slot] = []

    @rule(slot=slots)
    def remove(self, slot: int) -> None:
        self.index.remove(slot)
        self.naive.slots[slot] = []
        self.naive.capacity[slot] = CAPACITY

    @invariant()
    def both_find_the_same(self) -> None:
        assert self.index.entries == sum(map(len, self.naive.slots))
        for chain in self.sent:
            expected = [self.naive.hit(slot, chain) for slot in range(SLOTS)]
            assert self.index.hits(hashes(chain), range(SLOTS)) == expected
            assert self.index.hits_vector(hashes(chain), SLOTS).tolist() == expected


Index.TestCase.settings = settings(max_examples=100, stateful_step_count=30, derandomize=True, deadline=None)
TestIndex = Index.TestCase
