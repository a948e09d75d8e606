"""The held queue after any story of changes is the queue that the same requests would make anew.

What the right choice is says `test_queue.py`, against a naive reading of the rule. Here it is about the numbers that
the queue keeps up to date bit by bit: lanes that move into gaps, columns priced anew, hits that deepen, members that
come and go.
"""

import random

import msgspec
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isochrone.instances.table import Instance
from isochrone.nouns.instant import SECOND, Instant
from isochrone.scheduling.adjust import adjusted, adjusts_all
from isochrone.scheduling.lengths import OutputLengths
from isochrone.scheduling.price import Row, derive
from isochrone.scheduling.queue import Held, HeldQueue
from tests.property.test_queue import SETTINGS, held
from tests.support.rows import flight, make_pool

POSITIONS = 5
LENGTHS = OutputLengths()
seeds = st.integers(0, 10**6)


def row(instance: Instance, now: Instant) -> Row:
    plain = derive(instance, SETTINGS, LENGTHS, now)
    return adjusted(plain, instance, SETTINGS, now) if instance.special or adjusts_all(SETTINGS) else plain


class Queue(RuleBasedStateMachine):
    """A queue that is changed, and what it was told."""

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.pool = make_pool(POSITIONS, seed, SETTINGS)
        self.queue = HeldQueue()
        self.waiting: dict[str, Held] = {}
        self.hits: dict[str, dict[int, int]] = {}
        """Request -> cached tokens by slot."""
        self.now = SECOND
        self.number = 0

    @rule(seed=seeds)
    def add(self, seed: int) -> None:
        self.number += 1
        one = held(self.number, random.Random(f"{seed} {self.number}"), POSITIONS)  # no two with the same key
        known = one.ask.hits or [0] * POSITIONS
        self.hits[one.request] = {slot: int(known[slot]) for slot in range(POSITIONS)}
        one.ask.hits = self.by_position(one.request)
        self.queue.add(one, self.pool)
        self.waiting[one.request] = one

    @precondition(lambda self: self.waiting)
    @rule(which=seeds)
    def remove(self, which: int) -> None:
        name = sorted(self.waiting)[which % len(self.waiting)]
        assert self.queue.remove(name) is self.waiting.pop(name)
        assert self.queue.remove(name) is None

    @rule(seed=seeds)
    def load(self, seed: int) -> None:
        """Some instances get, or finish, work."""
        chance = random.Random(seed)
        for position in chance.sample(range(len(self.pool.members)), k=min(2, len(self.pool.members))):
            instance = self.pool.members[position]
            ledger = instance.ledger
            if ledger.waiting and chance.random() < 0.5:
                ledger.leave(next(iter(ledger.waiting.values())), self.now)
            else:
                self.number += 1
                ledger.enter(flight(100_000 + self.number, chance.randrange(1, 9_000), self.now), self.now)
            self.pool.marked.add(instance.slot)
        changed = self.pool.refresh(self.now, row)
        if self.waiting:
            self.queue.reprice(self.pool, changed)

    @precondition(lambda self: self.waiting and self.pool.members)
    @rule(seed=seeds)
    def deepen(self, seed: int) -> None:
        """An instance has been sent what some of them begin with."""
        chance = random.Random(seed)
        position = chance.randrange(len(self.pool.members))
        names = chance.sample(sorted(self.waiting), k=chance.randint(1, len(self.waiting)))
        found = {name: chance.randrange(self.waiting[name].ask.prompt_tokens) for name in names}
        for name, tokens in found.items():
            self.hits[name][self.pool.slots[position]] = tokens
        self.queue.rehit(self.pool, position, found)

    @rule(which=seeds)
    def come_or_go(self, which: int) -> None:
        """A member is cordoned, or takes part again: positions mean other instances from here on."""
        instance = self.pool.known[which % POSITIONS]
        instance.weight = 0.0 if instance.weight else 1.0
        self.pool.regroup(SETTINGS.samples_warm)
        self.pool.refresh(self.now, row)
        if self.waiting:
            assert self.queue.is_stale(self.pool)
            for one in self.waiting.values():
                one.ask.hits = self.by_position(one.request)
            self.queue.rebuild(self.pool)

    @rule(span=st.sampled_from([1, SECOND // 10, 2 * SECOND]))
    def wait(self, span: int) -> None:
        self.now += span

    def by_position(self, request: str) -> list[int]:
        return [self.hits[request][slot] for slot in self.pool.slots]

    @invariant()
    def it_is_what_it_would_be_anew(self) -> None:
        assert len(self.queue) == len(self.waiting)
        if not self.waiting:
            assert self.queue.best(self.pool, self.now, SETTINGS) is None
            return
        anew = HeldQueue()
        for name in sorted(self.waiting, reverse=True):
            one = self.waiting[name]
            ask = msgspec.structs.replace(one.ask, hits=self.by_position(name))
            anew.add(msgspec.structs.replace(one, ask=ask, lane=-1), self.pool)
        turn = [one.request for one in self.queue.in_turn(None)]
        assert turn == [one.request for one in anew.in_turn(None)]
        for name, one in self.waiting.items():
            assert [int(tokens) for tokens in self.queue.hits_of(one)] == self.by_position(name)
        found = self.queue.best(self.pool, self.now, SETTINGS)
        expected = anew.best(self.pool, self.now, SETTINGS)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert (found[0].request, found[1]) == (expected[0].request, expected[1])
            np.testing.assert_allclose(np.asarray(found[2]), np.asarray(expected[2]), rtol=1e-9)


Queue.TestCase.settings = settings(max_examples=25, stateful_step_count=40, derandomize=True, deadline=None)
TestQueue = Queue.TestCase
