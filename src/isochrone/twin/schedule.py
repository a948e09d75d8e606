"""What goes into the next step: continuous batching with chunked prefill, in the order of vLLM V1.

A step has room for `chunk_tokens` tokens and `max_num_seqs` sequences. Sequences that already run are served first,
in the order in which they were let in: one token each for those that decode, as much of the prompt as fits for those
that still prefill. What room is left goes to the waiting ones, first come first served; the first that does not fit
keeps those behind it waiting. When a running sequence needs a block and none is free, the sequence let in last loses
all its blocks, goes back to the head of the queue and will be computed again (its blocks may still be in the prefix
cache by then). While that happens nobody new is let in.

Planning a step, timing it and applying it are separate, so that a simulator can skip steps in between.
"""

from collections import deque
from dataclasses import dataclass, field

from isochrone.nouns.instant import Instant
from isochrone.twin.blocks import BlockPool
from isochrone.twin.sequence import Row


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an engine does at once."""

    max_num_seqs: int
    chunk_tokens: int
    block_tokens: int
    kv_blocks: int
    room_for_prompt: bool = False
    """A waiting prompt is let in only when there are free blocks for all of it, not just for its first chunk (vLLM from
    0.19 on: `scheduler_reserve_full_isl`)."""
    whole_prompts: bool = False
    """A prompt is computed in one step or waits (vLLM of 2023); see `prompts_first.py`."""

    def __post_init__(self) -> None:
        assert min(self.max_num_seqs, self.chunk_tokens, self.block_tokens, self.kv_blocks) > 0


@dataclass(slots=True)
class Plan:
    """One step: which rows, how many tokens each, and the sums that its duration depends on."""

    rows: list[Row] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    decode_rows: int = 0
    prefill_tokens: int = 0
    kv_read: int = 0
    """KV tokens that the decode rows read."""
    pairs: float = 0.0
    """Attention pairs of the prefilled tokens."""

    def add(self, row: Row, tokens: int) -> None:
        self.rows.append(row)
        self.tokens.append(tokens)
        if tokens == 1 and row.known - row.computed == 1:
            self.decode_rows += 1
            self.kv_read += row.known
        else:
            self.prefill_tokens += tokens
            self.pairs += tokens * (row.computed + tokens / 2)


class Scheduler:
    """The rows of one engine: waiting or running."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.kv_blocks)
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0

    def plan(self, now: Instant) -> Plan:
        """The step that starts now. Blocks are taken here; nothing else changes until `apply`."""
        plan = Plan()
        budget, preempted = self._plan_running(plan)
        if not preempted:
            self._plan_waiting(plan, budget, now)
        return plan

    def _plan_running(self, plan: Plan) -> tuple[int, bool]:
        """Serves the running rows; returns the tokens left, and whether a row had to give way."""
        budget = self.limits.chunk_tokens
        preemptions = self.preemptions
        running = self.running
        index = 0
        while index < len(running) and budget > 0:
            row = running[index]
            tokens = min(row.known - row.computed, budget)
            if not self._make_room(row, row.computed + tokens):
                break
            plan.add(row, tokens)
            budget -= tokens
            index += 1
        return budget, self.preemptions != preemptions

    def _plan_waiting(self, plan: Plan, budget: int, now: Instant) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            row = self.waiting[0]
            block_tokens = self.limits.block_tokens
            # The last token is always computed: its output is the first new token.
            shared = self.pool.find(row.request.hashes, (row.known - 1) // block_tokens)
            hit = len(shared) * block_tokens
            there = hit if row.scheduled_at is not None else max(hit, min(row.request.in_place, row.known - 1))
            tokens = min(row.known - there, budget)
            fresh = -(-(there + tokens) // block_tokens) - len(shared)
            whole = -(-row.known // block_tokens) - len(shared) if self.limits.room_for_prompt else fresh
            if not self.pool.fits(shared, whole) or (self.limits.whole_prompts and there + tokens < row.known):
                break
            self.waiting.popleft()
            self.running.append(row)
            self.pool.share(shared)
            row.blocks = shared + self.pool.take(fresh)
            row.named = len(shared)
            row.computed = there
            if row.scheduled_at is None:
                row.scheduled_at = now
                row.cached = hit
                self.prefix_query_tokens += row.known
                self.prefix_hit_tokens += hit
            self._name_full_blocks(row, there + tokens)
            plan.add(row, tokens)
            budget -= tokens

    def _make_room(self, row: Row, length: int) -> bool:
        """Blocks for the row's first `length` tokens, preempting others if needed; False if the row itself had to
        go."""
        missing = -(-length // self.limits.block_tokens) - len(row.blocks)
        if missing > 0:
            while self.pool.free < missing:
                victim = self.running.pop()
                self._preempt(victim)
                if victim is row:
                    return False
            row.blocks += self.pool.take(missing)
        self._name_full_blocks(row, length)
        return True

    def _preempt(self, row: Row) -> None:
        self.pool.give_back(row.blocks)
        row.blocks = []
        row.named = row.computed = 0
        row.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(row)

    def _name_full_blocks(self, row: Row, length: int) -> None:
        """Make the blocks that this step fills findable, at once, as vLLM does: a twin in the same step may share
        them."""
        full = length // self.limits.block_tokens
        hashes = row.request.hashes
        while row.named < full and row.named < len(hashes):
            self.pool.name(row.blocks[row.named], hashes[row.named])
            row.named += 1

    def apply(self, plan: Plan, now: Instant) -> list[Row]:
        """The step is done. Returns the rows that got a token; those at their last one have ended."""
        emitted: list[Row] = []
        for row, tokens in zip(plan.rows, plan.tokens, strict=True):
            if row.ended:  # left while the step ran
                continue
            row.computed += tokens
            if row.computed == row.known:
                row.known += 1
                row.emitted += 1
                emitted.append(row)
                if row.emitted >= row.request.output_tokens:
                    self.remove(row)
        return emitted

    def remove(self, row: Row) -> None:
        """The row is over, wherever it is. Its full blocks stay cached until their place is needed."""
        if row.ended:
            return
        row.ended = True
        if row.blocks:
            self.running.remove(row)
            self.pool.give_back(row.blocks)
            row.blocks = []
        else:
            self.waiting.remove(row)
