"""Named faults that are put into the core one at a time: each must make some test fail, or the tests say nothing.

Plain data: nothing of the package is imported here, so that it can be imported mutated (`scripts/mutants.py`).
"""

from typing import NamedTuple

SEEDS = "tests/simulation/test_swarm.py::test_invariants_hold_whatever_fails"
"""The fault swarm: stops at the first seed that fails."""
SAFE = "tests/unit/cluster/test_safe.py"
SMALL_PRINT = "tests/unit/cluster/test_small_print.py"


class Mutant(NamedTuple):
    """One fault."""

    name: str
    file: str
    """Below src/isochrone."""
    old: str
    """Stands in the file exactly once."""
    new: str
    killers: tuple[str, ...]
    """Tests of which at least one must fail."""


MUTANTS = (
    # -- the ledger --
    Mutant(
        "an attempt that decoded stays in the ledger",
        "instances/ledger.py",
        "            del self.decoding[flight.attempt]\n",
        "",
        (SEEDS,),
    ),
    Mutant(
        "owed output is not taken out at the end",
        "instances/ledger.py",
        "        self.owed_tokens -= flight.owed_tokens\n",
        "",
        (SEEDS,),
    ),
    Mutant(
        "pending prefill is not taken out at the first token",
        "instances/ledger.py",
        "        self.waiting_ns -= flight.work_ns\n",
        "",
        ("tests/unit/instances/test_ledger.py",),
    ),
    Mutant(
        "KV tokens of the output stay",
        "instances/ledger.py",
        "self.kv_tokens -= flight.uncached_tokens + flight.output_tokens",
        "self.kv_tokens -= flight.uncached_tokens",
        (SEEDS,),
    ),
    # -- attempts --
    Mutant(
        "late news of an attempt that is over counts",
        "cluster/attempts.py",
        "    flow = world.flights.pop(event.attempt, None)\n",
        "    flow = world.flights.get(event.attempt)\n",
        (SEEDS,),
    ),
    Mutant(
        "an answer is begun anew after its first byte",
        "cluster/retries.py",
        "not event.delivered or may_continue(world, event)",
        "True or may_continue(world, event)",
        (SEEDS,),
    ),
    Mutant(
        "a stream goes on elsewhere as if it began",
        "cluster/resume.py",
        "    flow.continues = True\n",
        "",
        (SEEDS,),
    ),
    Mutant(
        "streams are resumed although that is switched off",
        "cluster/resume.py",
        "event.delivered and event.resumable and world.settings.resume",
        "event.delivered and event.resumable",
        ("tests/simulation/test_faults.py::test_without_resume_a_broken_stream_is_told",),
    ),
    Mutant(
        "what a stream has said costs nothing where it goes on",
        "cluster/resume.py",
        "flow.ask.prompt_tokens = flow.decision.prompt_tokens_estimate + said_tokens",
        "flow.ask.prompt_tokens = flow.decision.prompt_tokens_estimate",
        (SMALL_PRINT,),
    ),
    Mutant(
        "an instance that failed a request is asked again",
        "cluster/retries.py",
        "    flow.tried |= {flight.slot}\n",
        "",
        (SEEDS,),
    ),
    Mutant(
        "one attempt too many",
        "cluster/retries.py",
        "flow.ordinal < world.settings.attempts_max",
        "flow.ordinal <= world.settings.attempts_max",
        (SEEDS,),
    ),
    Mutant(
        "a client that has left is served",
        "cluster/retries.py",
        "RETRYABLE = FAULTS | {Outcome.BUSY, Outcome.ABORTED}",
        "RETRYABLE = FAULTS | {Outcome.BUSY, Outcome.ABORTED, Outcome.CLIENT_LEFT}",
        (SEEDS,),
    ),
    Mutant(
        "retries cost no budget",
        "scheduling/admission.py",
        "        self.dispatched_tokens, self._at = 0, now\n        paid = saved >= tokens\n",
        "        self.dispatched_tokens, self._at = 0, now\n        return True\n        paid = saved >= tokens\n",
        (SAFE,),
    ),
    # -- requests --
    Mutant(
        "a held request whose client has left stays in the queue",
        "cluster/requests.py",
        "    release(world, flow)\n    world.series.left_queue",
        "    world.series.left_queue",
        (SEEDS,),
    ),
    Mutant(
        "a request is recorded twice",
        "cluster/endings.py",
        "    world.out.append(Record(decision))\n",
        "    world.out += [Record(decision), Record(decision)]\n",
        (SEEDS,),
    ),
    Mutant(
        "a request that had an instance is refused as if it had none",
        "cluster/endings.py",
        "    if flow.ordinal:\n        world.out.append(Fail",
        "    if False:\n        world.out.append(Fail",
        (SEEDS,),
    ),
    Mutant(
        "a stream is shed in the middle",
        "cluster/deadlines.py",
        "flow.ask.sheddable and not flow.continues",
        "flow.ask.sheddable",
        (SEEDS,),
    ),
    Mutant(
        "one request too many is held",
        "cluster/placement.py",
        "full = world.held_count >= world.settings.queue_requests_max",
        "full = world.held_count > world.settings.queue_requests_max",
        (SEEDS,),
    ),
    Mutant(
        "a full queue refuses what could go at once",
        "cluster/placement.py",
        "    if not pool.queue or full:",
        "    if not pool.queue:",
        (SMALL_PRINT,),
    ),
    Mutant(
        "a request that has no place keeps others from theirs",
        "cluster/placement.py",
        "        stuck.add(held.barred)\n",
        "        return None\n",
        (SMALL_PRINT,),
    ),
    Mutant(
        "a request is dispatched twice",
        "cluster/placement.py",
        "            dispatch(world, now, flow, position, prices)\n            return True\n",
        "            dispatch(world, now, flow, position, prices)\n"
        "            dispatch(world, now, flow, position, prices)\n            return True\n",
        (SEEDS,),
    ),
    # -- instances --
    Mutant(
        "an ejected instance takes requests",
        "instances/lifecycle.py",
        "        if self.state is State.READY:\n            return True\n",
        "        if self.state in (State.READY, State.EJECTED):\n            return True\n",
        ("tests/property/test_lifecycle.py", SEEDS),
    ),
    Mutant(
        "a withdrawn instance takes requests",
        "cluster/membership.py",
        "    instance.life.drain()\n    instance.keep_when_drained = event.keep\n",
        "    instance.keep_when_drained = event.keep\n",
        (SEEDS,),
    ),
    Mutant(
        "an instance of weight 0 takes requests",
        "scheduling/pool.py",
        "if instance.life.placeable and instance.weight > 0]",
        "if instance.life.placeable]",
        (SAFE,),
    ),
    Mutant(
        "the hard limit of KV memory is no limit",
        "scheduling/price.py",
        "        below_slots and (usage is None or usage <= settings.kv_hard_ratio or running == 0),\n",
        "        below_slots,\n",
        (SMALL_PRINT,),
    ),
    Mutant(
        "an idle instance is refused",
        "scheduling/queue.py",
        "goes |= np.isfinite(open_price[:, idle]).any(axis=1)",
        "pass",
        (SMALL_PRINT,),
    ),
    Mutant(
        "a restarted engine is taken to have kept its cache",
        "cluster/membership.py",
        "        world.index.clear(instance.slot)\n        _begin_again",
        "        _begin_again",
        (SMALL_PRINT,),
    ),
    Mutant(
        "a restarted engine is blamed for its former process",
        "cluster/membership.py",
        "        _begin_again(world, now, instance)\n",
        "",
        (SAFE,),
    ),
    # -- prices and order --
    Mutant(
        "delaying those that wait costs nothing",
        "scheduling/price.py",
        "    imposed_waiting = 1.0 + waiting\n",
        "    imposed_waiting = 1.0\n",
        ("tests/property/test_price.py", "tests/unit/test_equal_cost_page.py"),
    ),
    Mutant(
        "a hit may be the whole prompt",
        "cluster/choosing.py",
        "most = flow.ask.prompt_tokens - 1",
        "most = flow.ask.prompt_tokens",
        (SMALL_PRINT,),
    ),
    Mutant(
        "priority is ignored",
        "scheduling/queue.py",
        "return due_s - priority * PRIORITY_S",
        "return due_s",
        ("tests/property/test_queue.py",),
    ),
    Mutant(
        "barred instances are priced",
        "scheduling/placing.py",
        "left = [NEVER if slot in barred else",
        "left = [NEVER if slot in () else",
        (SEEDS,),
    ),
    Mutant(
        "ties go to the first",
        "scheduling/placing.py",
        "return int(tied[int(chance.random() * len(tied))])",
        "return int(tied[0])",
        ("tests/unit/scheduling/test_policies.py", SMALL_PRINT),
    ),
    Mutant(
        "a tenant comes back with credit for having been away",
        "scheduling/fairness.py",
        "self.counters[line] = max(self.counters[line], min(",
        "self.counters[line] = min(self.counters[line], min(",
        ("tests/unit/scheduling/test_fairness.py",),
    ),
    Mutant(
        "time goes back",
        "cluster/cluster.py",
        "        if now < self._now:\n            now = self._now\n",
        "",
        (SMALL_PRINT,),
    ),
    # -- the prefix index --
    Mutant(
        "a prefix that is used again is forgotten as if it were not",
        "kv/index.py",
        "            sizes.move_to_end(blocks[k])\n",
        "            pass\n",
        ("tests/property/test_index_machine.py",),
    ),
    Mutant(
        "what an instance has forgotten is still found there",
        "kv/index.py",
        "sizes, masks, others = held.sizes, self._masks, ~held.bit",
        "sizes, masks, others = held.sizes, self._masks, ~0",
        ("tests/property/test_index_machine.py",),
    ),
    # -- the splice --
    Mutant(
        "usage of a continued stream counts what was said before twice",
        "access/splice.py",
        "completion = (usage.completion_tokens or 0) + self._base_tokens",
        "completion = (usage.completion_tokens or 0) + 2 * self._base_tokens",
        (SEEDS,),
    ),
    Mutant(
        "text that is said again reaches the client twice",
        "access/splice.py",
        "self._tail, text = self._tail[same:], text[same:]",
        "self._tail = self._tail[same:]",
        (SEEDS,),
    ),
    Mutant(
        "a continuation that breaks off looks whole",
        "access/splice.py",
        "            self.whole = self._finish_reason is not None\n",
        "            self.whole = True\n",
        ("tests/unit/access/test_splice.py",),
    ),
    Mutant(
        "a stream goes on from half a character",
        "access/transcript.py",
        "if not texts[number - 1] or count(ids[number - 1]) != 1 or texts[number - 1].endswith(REPLACEMENT):",
        "if count(ids[number - 1]) != 1:",
        ("tests/property/test_splice.py",),
    ),
    Mutant(
        "the last event is sent twice",
        "access/splice.py",
        '        if self._finish_reason is not None:\n            return b""\n        text, finish',
        "        text, finish",
        ("tests/unit/access/test_splice.py",),
    ),
    # -- quotas --
    Mutant(
        "what a request set aside is never given back",
        "access/quotas.py",
        "        self.reserved_tokens -= reservation.tokens\n",
        "",
        ("tests/property/test_quotas.py",),
    ),
    Mutant(
        "a request is settled twice",
        "access/quotas.py",
        "        reservation = self._reservations.pop(decision.request, None)\n",
        "        reservation = self._reservations.get(decision.request)\n",
        ("tests/property/test_quotas.py",),
    ),
    Mutant(
        "output is free of charge",
        "access/quotas.py",
        "    return prompt + output\n",
        "    return prompt\n",
        ("tests/property/test_quotas.py",),
    ),
    Mutant(
        "a bucket forgets its debt",
        "access/bucket.py",
        "        level = self._level - uses * MINUTE\n",
        "        level = max(0, self._level - uses * MINUTE)\n",
        ("tests/property/test_quotas.py",),
    ),
)
