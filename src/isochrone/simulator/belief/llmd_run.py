"""The simulator as llm-d's reports need it: engines whose gauges are a step old, and a proxy with a limit.

The endpoint picker reads every engine's metrics 20 times a second, and vLLM sets them once a step (`twin/gauges.py`).
Requests pass an Envoy, which by default has at most 1,024 of them under way to one cluster of engines and answers 503
to whoever comes beyond. The reports on eight instances send up to 1,500 at once.
"""

import msgspec

from isochrone.nouns.instance import Snapshot
from isochrone.simulator.fleet import Member
from isochrone.simulator.host import Host
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import Simulation
from isochrone.simulator.workload import Workload
from isochrone.twin.gauges import GaugedEngine

UNDER_WAY_MAX = 1024
"""Requests sent on by the proxy and not yet answered to the end: Envoy's default (circuit breakers, max_requests).
Published throughputs times the durations of steps in the reports' charts say the same: some 950,000 tokens come out of
each step that sends 1,500 requests of 1,000 tokens. The other report, which never sends more, gives a success rate of
100 %; this one gives none."""


class GaugedHost(Host):
    """Shows what the engine's gauges say."""

    def _engine(self) -> GaugedEngine:
        member = self.member
        return GaugedEngine(member.limits(self._block_tokens), member.profile.step, member.pace)

    def snapshot(self) -> Snapshot:
        engine = self.engine
        assert isinstance(engine, GaugedEngine)
        said = engine.gauges
        return msgspec.structs.replace(
            super().snapshot(), running=said.running, waiting=said.waiting, kv_usage_ratio=said.kv_usage_ratio
        )


class LadderRun(Simulation):
    """One ladder. Calls that the proxy turns away are over at once, and are not served."""

    def __init__(self, plan: Plan, workload: Workload, seed: int = 0) -> None:
        super().__init__(plan, workload, seed)
        self._begun = 0

    def host(self, number: int, member: Member) -> Host:
        return GaugedHost(number, member, self.block_tokens, self.now, member.profile.max_model_len)

    def begin(self, what: object) -> None:
        over = len(self.calls) - self._left
        self._begun += 1
        if self._begun - over > UNDER_WAY_MAX:
            self._left -= 1
            return
        super().begin(what)
