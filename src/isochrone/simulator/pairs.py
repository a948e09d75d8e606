"""Prompts computed in one pool of instances, answers in another (prefill/decode disaggregation).

Every call becomes two legs, each of which the cluster places as it places any request, in its own pool: the prefill leg
asks for one token; when that is there, the decode leg asks for the answer. The prompt's KV then goes over the links of
both instances: prompt tokens * KV bytes of a token / bandwidth, one transfer at a time each way of a link, in order.
From there on the decode instance does what vLLM does with a KV connector: the prompt takes memory, and only its last
token is computed. The client's first token is the decode leg's.

What is left out: transfers layer by layer while the prefill runs; memory that is kept on the prefill instance until the
KV is away, and set aside on the decode instance before; going without a pair where that is quicker; prefixes that the
decode instance has already (the whole prompt travels). An answer that is continued on another decode instance has its
prompt computed there.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from isochrone.nouns.events import Outcome
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request, Slo
from isochrone.simulator.fleet import DECODE, PREFILL
from isochrone.simulator.host import DOWN, Sent
from isochrone.simulator.plan import Plan, Run
from isochrone.simulator.requests import Requests
from isochrone.simulator.run import Simulation
from isochrone.simulator.tally import Tally
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import SkippingEngine


def legs(workload: Workload) -> Workload:
    """Call k becomes calls 2k (prefill) and 2k + 1 (decode), turns of one session without a gap."""
    lone = first_free(workload.calls)
    made: list[Call] = []
    for number, call in enumerate(workload.calls):
        session = call.session if call.session >= 0 else lone + number
        made.append(msgspec.structs.replace(call, output_tokens=1, session=session))
        made.append(msgspec.structs.replace(call, session=session, gap=0))
    return replace(workload, calls=made)


def first_free(calls: Sequence[Call]) -> int:
    """The first number that no session has."""
    return 1 + max((call.session for call in calls), default=-1)


def decodes(number: int) -> bool:
    """Whether the leg with this number is a decode leg."""
    return number % 2 == 1


class Legs(Requests):
    """Makes the requests of both kinds. Sessions from `lone` on are made up: a call and nothing else."""

    def __init__(self, lone: int, block_tokens: int, seed: int, plan: Plan) -> None:
        super().__init__(block_tokens, seed, plan.objective, plan.told, plan.fleet.reference)
        self._lone = lone

    def request(self, name: str, call: Call) -> Request:
        """A prefill leg has the prompt's blocks and may be shed; a decode leg only has a gap to keep."""
        made = super().request(name, call)
        slo, session = made.slo, made.session if call.session < self._lone else ""
        if decodes(int(name)):
            gap = Slo(tpot_s=slo.tpot_s) if slo is not None else None
            return msgspec.structs.replace(made, model=DECODE, blocks=(), session=session, slo=gap)
        first = Slo(slo.ttft_s, None, slo.sheddable) if slo is not None else None
        return msgspec.structs.replace(made, model=PREFILL, max_tokens=1, session=session, slo=first)


class Transfer(NamedTuple):
    """KV on its way."""

    sent: Sent
    request: TwinRequest
    engine: SkippingEngine
    """The process that waits for it."""


class Pairs(Simulation):
    """One workload, of legs, on one cluster with both pools."""

    def __init__(self, plan: Plan, workload: Workload, seed: int = 0) -> None:
        assert plan.link_gbps > 0
        self._lone = first_free(workload.calls)
        super().__init__(plan, legs(workload), seed)
        self._sends_until: dict[int, Instant] = {}
        self._takes_until: dict[int, Instant] = {}
        """By number of the instance: how long its link is busy, either way."""

    def requests(self, block_tokens: int, seed: int) -> Legs:
        return Legs(self._lone, block_tokens, seed, self.plan)

    def begin(self, what: object) -> None:
        """Send a leg; the second only where the first has done its part."""
        assert isinstance(what, int)
        if decodes(what) and not self.tally.served[what - 1]:
            self.release_next(what)
        else:
            super().begin(what)

    def twin_request(self, sent: Sent) -> TwinRequest:
        request = super().twin_request(sent)
        if decodes(sent.call):
            request.hashes = []
            request.in_place = request.prompt_tokens if not sent.before else 0
        return request

    def submit(self, sent: Sent, request: TwinRequest) -> None:
        """What is in place has to come there first."""
        if not request.in_place:
            super().submit(sent, request)
            return
        there_at = self._transfer(self.tally.placed[sent.call - 1], sent, request.prompt_tokens)
        self.at(there_at, self._there, Transfer(sent, request, sent.host.engine))

    def _transfer(self, source: int, sent: Sent, tokens: int) -> Instant:
        """When the KV of so many tokens will have come from the instance with that number."""
        target = sent.host.number
        size = tokens * sent.host.member.profile.kv_bytes_per_token
        starts = max(self.now, self._sends_until.get(source, 0), self._takes_until.get(target, 0))
        ends = starts + round(size * 8 / self.plan.link_gbps)  # bits over gigabits a second are nanoseconds
        self._sends_until[source] = self._takes_until[target] = ends
        return ends

    def _there(self, what: object) -> None:
        assert isinstance(what, Transfer)
        sent, request = what.sent, what.request
        if self.sent.get(sent.attempt) is not sent:
            return  # called off meanwhile
        if sent.host.engine is not what.engine or sent.host.mode in DOWN:
            self.end(sent, Outcome.LOST)
        else:
            super().submit(sent, request)

    def notes(self) -> list[str]:
        links = f"links of {self.plan.link_gbps:g} Gb/s between"
        return [*super().notes(), f"prompts and answers are computed in pools of their own, {links}"]


def joined(found: Tally) -> Tally:
    """What became of each call, from what became of its legs. Forecasts are of single legs."""
    made = Tally(0)
    first, second = slice(0, None, 2), slice(1, None, 2)
    made.due, made.cached = found.due[first], found.cached[first]
    made.first, made.served = found.first[second], found.served[second]
    made.ended = array("q", map(max, found.ended[first], found.ended[second]))
    made.placed = array(
        "i", (b if b >= 0 else a for a, b in zip(found.placed[first], found.placed[second], strict=True))
    )
    tries = zip(found.tries[first], found.tries[second], strict=True)
    made.tries = bytearray(min(255, a + max(0, b - 1)) for a, b in tries)
    made.outcomes = found.outcomes - Counter(done=sum(found.served[first]))
    made.forecast_s, made.real_s = found.forecast_s, found.real_s
    made.e2e_error_s, made.ttft_errors_s, made.spreads = found.e2e_error_s, found.ttft_errors_s, found.spreads
    return made


def simulate_pairs(plan: Plan, workload: Workload, seed: int = 0) -> Run:
    """Run one workload; the result is told in its own calls."""
    run = Pairs(plan, workload, seed).run()
    run.tally = joined(run.tally)
    return run
