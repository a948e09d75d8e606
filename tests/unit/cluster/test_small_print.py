"""Rules of the core that are one line each, and that hardly any run would miss."""

from collections import Counter

from isochrone.nouns.events import Arrived, Ended, Observed, Outcome, Weighed, Withdrawn, Woke
from isochrone.nouns.instance import Snapshot
from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import Slo
from isochrone.nouns.settings import Settings
from tests.support.rig import Engine, Rig

TEXT = b"x" * 8_192
"""Whole blocks, so that all of it can be cached."""


def hits_of(rig: Rig, name: str, instance: str) -> int:
    """Cached tokens that a decision took an instance to have."""
    decision = rig.cluster.decision(name)
    assert decision is not None
    return next(one.hit_tokens for one in rig.cluster.candidates(decision) if one.instance == instance)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    rig = Rig(Settings(), engines=2)
    rig.feed(Arrived(rig.request("first", TEXT)))
    rig.feed(Arrived(rig.request("again", TEXT)))
    (_, _, where), _ = rig.dispatches
    decision = rig.cluster.decision("again")
    assert decision is not None
    assert hits_of(rig, "again", where) == decision.prompt_tokens_estimate - 1


def test_a_restarted_engine_has_nothing_cached() -> None:
    rig = Rig(Settings(), engines=1)
    rig.feed(Arrived(rig.request("first", TEXT, output=1)))
    rig.run(until=rig.now + 5 * SECOND)
    rig.feed(Arrived(rig.request("again", TEXT, output=1)))
    assert hits_of(rig, "again", "e0") > 1000
    rig.run(until=rig.now + 5 * SECOND)
    for started_at in (100.0, 200.0):
        rig.feed(Observed("e0", Snapshot(engine="vllm", running=0, started_at_unix_s=started_at), rig.now))
    rig.feed(Arrived(rig.request("after", TEXT, output=1)))
    assert hits_of(rig, "after", "e0") == 0


def test_ties_are_broken_by_chance() -> None:
    firsts: Counter[str] = Counter()
    for seed in range(40):
        rig = Rig(Settings(), engines=4, seed=seed)
        rig.feed(Arrived(rig.request("r")))
        firsts[rig.dispatches[0][2]] += 1
    assert len(firsts) == 4


def test_an_earlier_time_counts_as_the_latest() -> None:
    """Clocks of drivers may be read out of order: a request that arrived "before" has not waited."""
    rig = Rig(Settings(), engines=1)
    rig.cluster.handle(20 * SECOND, Weighed("e0", 1.0))
    rig.cluster.handle(10 * SECOND, Arrived(rig.request("r")))
    decision = rig.cluster.decision("r")
    assert decision is not None
    assert decision.arrived_at == 20 * SECOND


def test_a_stream_that_goes_on_is_charged_for_what_it_has_said() -> None:
    """Its next prompt is its own and the answer so far: the instance that takes over has that many tokens pending."""
    rig = Rig(Settings(), engines=2)
    rig.feed(Arrived(rig.request("r", b"x" * 400, output=200)))
    rig.run(until=rig.now + 3 * SECOND)
    ((_, _, first),) = rig.dispatches
    said = rig.streams["r"].splice.output_tokens
    assert said > 100
    rig.feed(Withdrawn(first, drain=False))
    while len(rig.dispatches) == 1:
        rig.run(until=rig.now + SECOND // 100)
    other = ({"e0", "e1"} - {first}).pop()
    (view,) = [view for view in rig.cluster.instances() if view.id == other]
    decision = rig.cluster.decision("r")
    assert decision is not None
    assert view.pending_prefill_tokens >= decision.prompt_tokens_estimate + said
    rig.run()
    rig.check_over()


def full(rig: Rig, instance: str, usage: float) -> None:
    """The instance says that so much of its KV memory is in use."""
    snapshot = Snapshot(engine="vllm", running=0, kv_usage_ratio=usage, kv_capacity_tokens=100_000)
    rig.feed(Observed(instance, snapshot, rig.now))


def test_a_busy_instance_over_its_kv_limit_is_not_open_however_cheap() -> None:
    """The other one is deep in work, so that the price alone would say the full one."""
    rig = Rig(Settings(samples_warm=0, kv_soft_price_s=0.0), engines=2)
    for number in range(2):
        rig.feed(Arrived(rig.request(f"first{number}")))
    assert {where for _, _, where in rig.dispatches} == {"e0", "e1"}
    full(rig, "e0", 0.5)
    full(rig, "e1", 0.98)
    for number in range(60):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5)))
    assert {where for _, _, where in rig.dispatches[2:]} == {"e0"}
    assert rig.cluster.queues()[0].depth > 0
    rig.now += 8 * SECOND  # longer than a request waits for an instance where it finds KV memory
    full(rig, "e1", 0.98)
    rig.feed(Woke())
    assert {where for _, _, where in rig.dispatches[2:]} == {"e0"}


def test_an_idle_instance_is_open_however_full_its_kv_memory() -> None:
    """Nobody runs there: what it holds is cache, which the engine lets go."""
    rig = Rig(Settings(samples_warm=0), engines=2)
    full(rig, "e1", 0.99)
    full(rig, "e0", 0.99)
    for number in range(2):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000)))
    assert {where for _, _, where in rig.dispatches} == {"e0", "e1"}


def blocked(queue_requests_max: int) -> Rig:
    """Round robin over two instances of one slot each. `lost` may go to the busy one only: it waits, and `other` is the
    next to come while one instance is idle."""
    settings = Settings(policy="estimated-time", slots_default=1, queue_requests_max=queue_requests_max)
    rig = Rig(settings, engines=2)
    rig.feed(Arrived(rig.request("long", output=1000)))
    rig.feed(Arrived(rig.request("lost", output=1000)))
    (_, _, busy), (_, _, idle) = rig.dispatches
    assert busy != idle
    attempt = next(attempt for attempt, sent in rig.sent.items() if sent.request == "lost")
    rig.feed(Ended(attempt, Outcome.BUSY))
    assert rig.cluster.queues()[0].depth == 1
    rig.feed(Arrived(rig.request("other")))
    assert rig.dispatches[-1][1:] == ("other", idle)
    return rig


def test_a_full_queue_does_not_refuse_what_could_go_at_once() -> None:
    assert blocked(queue_requests_max=1).ended == {}


def test_who_has_no_place_does_not_keep_others_from_theirs() -> None:
    assert blocked(queue_requests_max=1000).cluster.queues()[0].depth == 1


def test_an_idle_instance_takes_what_waits_for_a_cheaper_one() -> None:
    """However much dearer it is; and though the requests may be shed, so that they may wait for the best place."""
    rig = Rig(Settings(samples_warm=0), engines=2)
    for number in range(40):
        text = b"%d" % number * 9_000
        rig.feed(Arrived(rig.request(f"r{number}", text, output=5, slo=Slo(100.0, None, True))))
    assert rig.cluster.queues()[0].depth > 0
    rig.join(Engine("idle"), weight=0.001)  # its prices are a thousand times as high
    assert rig.engines["idle"].taken == 1
