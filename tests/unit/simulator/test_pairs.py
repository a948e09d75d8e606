"""Prefill and decode pools: one call by hand, transfers that share a link, what faults do, how legs become calls."""

from dataclasses import replace

import pytest

from isochrone.nouns.settings import Settings
from isochrone.simulator.faults import Fault
from isochrone.simulator.fleet import DECODE, PREFILL, Fleet, fleet, in_pools
from isochrone.simulator.pairs import Pairs, joined, legs
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import START, simulate
from isochrone.simulator.unloaded import first_token_s
from isochrone.simulator.workload import BadWorkload, Call, Workload
from isochrone.twin.profiles import PROFILES

SECOND = 10**9
H100 = PROFILES["h100-8b"]


def pools(prefill: int, decode: int) -> Fleet:
    return in_pools(fleet([("h100-8b", prefill + decode)], {}, {}), prefill)


def test_one_call_by_hand() -> None:
    """1,000 tokens of 131,072 bytes over 10 Gb/s take 105 ms; a step for the last prompt token, then one a token."""
    run = simulate(Plan(Settings(), pools(1, 1), link_gbps=10.0), Workload("w", [Call(0, 1000, 3)]))
    prefill_s = first_token_s(H100, 1000)
    transfer_s = 1000 * 131_072 * 8 / 10e9
    steps_s = [H100.step.seconds(1, context, 0.0) for context in (1000, 1001, 1002)]
    assert transfer_s == pytest.approx(0.1049, abs=0.0001)
    tally = run.tally
    assert list(tally.due) == [START]
    assert (tally.first[0] - START) / 1e9 == pytest.approx(prefill_s + transfer_s + steps_s[0], abs=1e-6)
    assert (tally.ended[0] - START) / 1e9 == pytest.approx(prefill_s + transfer_s + sum(steps_s), abs=1e-6)
    assert tally.outcomes == {"done": 1}
    assert list(tally.placed) == [1]
    assert run.notes == ["prompts and answers are computed in pools of their own, links of 10 Gb/s between"]


def test_transfers_to_one_instance_go_one_after_the_other() -> None:
    """Two prompts are done at nearly the same time on two instances; the second one's KV waits for the first one's."""
    plan = Plan(Settings(), pools(2, 1), link_gbps=1.0)
    tally = simulate(plan, Workload("w", [Call(0, 1000, 1), Call(0, 1000, 1)])).tally
    first, second = sorted(tally.first)
    transfer = 1000 * 131_072 * 8
    assert second - first == pytest.approx(transfer, abs=15_000_000)
    wide = simulate(replace(plan, link_gbps=1e6), Workload("w", [Call(0, 1000, 1), Call(0, 1000, 1)])).tally
    assert max(wide.first) - min(wide.first) < 15_000_000


def test_the_pools_do_their_own_work_only() -> None:
    calls = [Call(k * SECOND // 50, 800, 60, ids=(k % 5,)) for k in range(200)]
    simulation = Pairs(Plan(Settings(), pools(2, 2)), Workload("w", calls))
    run = simulation.run()
    hosts = list(simulation.hosts.values())
    assert [host.member.model for host in hosts] == [PREFILL, PREFILL, DECODE, DECODE]
    assert sum(host.engine.generated_tokens for host in hosts[:2]) == 200, "a token each"
    assert sum(host.engine.generated_tokens for host in hosts[2:]) == 200 * 60
    assert sum(host.engine.prefix_hit_tokens for host in hosts[:2]) > 0
    assert sum(host.engine.prefix_hit_tokens for host in hosts[2:]) == 0
    assert all(host.engine.pool.used == 0 for host in hosts)
    assert simulation.cluster.in_flight() == 0
    assert all(view.kv_tokens == view.in_flight == 0 for view in simulation.cluster.instances())
    whole = joined(run.tally)
    assert whole.outcomes == {"done": 200}
    assert all(due < first <= ended for due, first, ended in zip(whole.due, whole.first, whole.ended, strict=True))
    assert sum(whole.cached) == sum(host.engine.prefix_hit_tokens for host in hosts[:2])


def test_turns_wait_for_the_whole_answer_before() -> None:
    calls = [Call(0, 300, 200, session=4), Call(SECOND // 10, 600, 5, session=4, gap=2 * SECOND), Call(5, 300, 2)]
    made = legs(Workload("w", calls)).calls
    assert [call.session for call in made] == [4, 4, 4, 4, 7, 7]
    assert [call.output_tokens for call in made] == [1, 200, 1, 5, 1, 2]
    tally = simulate(Plan(Settings(), pools(1, 1)), Workload("w", calls)).tally
    assert tally.due[1] == tally.ended[0] + 2 * SECOND
    assert tally.due[2] == START + 5, "a call of no session waits for nobody"


@pytest.mark.parametrize("fault", ["dead", "hung", "unreachable", "busy"])
@pytest.mark.parametrize("instance", [0, 2])
def test_a_pool_loses_an_instance(fault: str, instance: int) -> None:
    """Everything is served by the other one of the pool: anew, continued, or with its KV sent again."""
    calls = [Call(k * SECOND // 40, 800, 60) for k in range(200)]
    settings = Settings(heartbeat_interval_s=0.5, gap_s=1.0, retry_tokens_max=1e9)
    plan = Plan(settings, pools(2, 2), faults=(Fault(1.0, fault, instance, 4.0),), link_gbps=20.0)
    simulation = Pairs(plan, Workload("w", calls))
    whole = joined(simulation.run().tally)
    assert whole.outcomes["done"] >= 198, whole.outcomes
    assert sum(whole.outcomes.values()) == 200
    assert max(whole.tries) >= 2
    assert simulation.cluster.in_flight() == 0
    assert all(host.engine.pool.used == 0 for host in simulation.hosts.values())


def test_a_prompt_that_is_refused_has_no_answer() -> None:
    calls = [Call(0, 4000, 5) for _ in range(300)]
    plan = Plan(Settings(queue_requests_max=0), pools(1, 1), faults=(Fault(0.0, "busy", 0, 100.0),))
    tally = simulate(plan, Workload("w", calls)).tally
    assert sum(tally.outcomes.values()) == 300
    assert "done" not in tally.outcomes
    assert list(tally.first) == [-1] * 300
    assert min(tally.ended) >= START


def test_pools_need_an_instance_each() -> None:
    for prefill in (0, 3):
        with pytest.raises(BadWorkload, match="at least one"):
            pools(prefill, 3 - prefill)
