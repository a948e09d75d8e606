"""What must hold by default, whoever the user is and however little is known."""

from collections import Counter

from isochrone.nouns.commands import Dispatch, Refuse
from isochrone.nouns.events import (
    Arrived,
    Ended,
    Found,
    ModelsSeen,
    Observed,
    Outcome,
    Probed,
    Verdict,
    Weighed,
    Withdrawn,
)
from isochrone.nouns.instance import InstanceSpec, ModelCard, Snapshot
from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import PromptSize, Request, Slo, Usage
from isochrone.nouns.settings import Settings
from tests.support.rig import MODEL, Engine, Rig

WARM = Settings(samples_warm=0)


def test_with_one_instance_the_gateway_adds_nothing() -> None:
    rig = Rig(Settings(samples_warm=0, slots_default=2), engines=1)
    for number in range(50):
        rig.feed(Arrived(rig.request(f"r{number}", b"x" * 20_000, output=5)))
    assert len(rig.dispatches) == 50
    assert rig.cluster.next_deadline() is None


def test_a_cold_pool_holds_nothing_and_spreads_its_first_burst_evenly() -> None:
    rig = Rig(Settings(), engines=4)
    for number in range(40):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5)))
    assert set(Counter(engine for _, _, engine in rig.dispatches).values()) == {10}


def test_a_warm_pool_holds_what_would_only_wait_in_an_engine() -> None:
    rig = Rig(WARM, engines=2)
    for number in range(60):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5)))
    assert 2 <= len(rig.dispatches) < 60
    assert rig.cluster.queues()[0].depth == 60 - len(rig.dispatches)
    rig.run()
    rig.check_over()
    assert set(rig.ended.values()) == {"done"}


def test_no_hold_holds_nothing() -> None:
    rig = Rig(Settings(samples_warm=0, hold=False), engines=2)
    for number in range(60):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5)))
    assert len(rig.dispatches) == 60


def test_an_idle_instance_is_never_refused_to_a_request_that_fits() -> None:
    """The idle one is ten times slower and caches nothing; what would wait for the other goes there all the same."""
    rig = Rig(WARM, engines=1)
    for number in range(40):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5)))
    rig.join(Engine("idle"))
    rig.cluster._world.table.by_id["idle"].level.observe(2.3, 1.0)
    rig.feed(Arrived(rig.request("late", b"39" * 9_000, output=5)))
    assert rig.engines["idle"].taken == 1


def test_nothing_is_shed_that_does_not_say_so() -> None:
    for slo, shed in ((None, False), (Slo(0.5, None, False), False), (Slo(0.5, None, True), True)):
        rig = Rig(Settings(samples_warm=0, slo=slo), engines=2, token_s=100e-6)
        for number in range(80):
            rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5)))
        rig.run()
        rig.check_over()
        assert ("refused:slo_unattainable" in rig.ended.values()) == shed


def test_an_engine_without_metrics_is_served_from_the_ledger_alone() -> None:
    rig = Rig(Settings(), engines=3)
    rig._beat = lambda engine_id: None  # type: ignore[method-assign]  # no heartbeat, no scrape, ever
    for number in range(90):
        rig.at(SECOND + number * 10_000_000, Arrived(rig.request(f"r{number}", b"%d" % number * 500, output=50)))
    rig.run()
    rig.check_over()
    assert all(view.kv_usage_ratio is None for view in rig.cluster.instances())
    counts = Counter(engine for _, _, engine in rig.dispatches)
    assert min(counts.values()) >= 20


def test_weight_zero_takes_nothing_new() -> None:
    rig = Rig(Settings(), engines=2)
    rig.feed(Weighed("e0", 0.0))
    for number in range(10):
        rig.feed(Arrived(rig.request(f"r{number}")))
    assert {engine for _, _, engine in rig.dispatches} == {"e1"}


def test_the_queue_is_bounded_and_says_so() -> None:
    rig = Rig(Settings(samples_warm=0, queue_requests_max=5), engines=2)
    for number in range(60):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5)))
    assert "refused:queue_full" in rig.ended.values()
    assert rig.cluster.queues()[0].depth == 5
    rig.run()
    rig.check_over()


def test_kv_hard_limit_is_kept_where_there_is_a_choice() -> None:
    rig = Rig(WARM, engines=2)
    rig.feed(Arrived(rig.request("first")))
    (_, _, busy) = rig.dispatches[0]
    rig.feed(Observed(busy, Snapshot(engine="vllm", kv_usage_ratio=0.99, kv_capacity_tokens=100_000), rig.now))
    for number in range(6):
        rig.feed(Arrived(rig.request(f"r{number}")))
    assert {engine for _, _, engine in rig.dispatches[1:]} == {"e0", "e1"} - {busy}


def test_refusals_are_early_and_clear() -> None:
    rig = Rig(Settings(), engines=1)

    def refusal(**fields: object) -> tuple[int, str, str]:
        ask = {"id": "q", "model": MODEL, "path": "/v1/completions", **fields}
        (refuse,) = [c for c in rig.cluster.handle(rig.now, Arrived(Request(**ask))) if isinstance(c, Refuse)]  # type: ignore[arg-type]
        return refuse.error.status, refuse.error.code, refuse.error.message

    status, code, message = refusal(model="gpt-5")
    assert (status, code) == (404, "model_not_found")
    assert "'m'" in message or " m" in message
    status, code, message = refusal(size=PromptSize(token_ids=40_000))
    assert (status, code) == (400, "context_length_exceeded")
    assert "32768" in message
    rig.feed(Probed("e0", Verdict.REFUSED))
    for _ in range(5):
        rig.feed(Probed("e0", Verdict.REFUSED))
    status, code, _ = refusal()
    assert (status, code) == (503, "no_instance_ready")


def test_a_prompt_near_the_limit_is_left_to_the_engine_which_can_count() -> None:
    rig = Rig(Settings(), engines=1)
    request = Request(id="q", model=MODEL, path="/v1/completions", size=PromptSize(text_bytes=4 * 40_000))
    assert any(isinstance(c, Dispatch) for c in rig.cluster.handle(rig.now, Arrived(request)))


def test_a_longer_context_is_preferred_where_the_prompt_needs_it() -> None:
    rig = Rig(Settings(), engines=1)
    rig.engines["long"] = Engine("long")
    rig.feed(Found(InstanceSpec(id="long", url="http://long")))
    rig.feed(ModelsSeen("long", (ModelCard(MODEL, 131_072),)))
    rig.feed(Probed("long", Verdict.OK))
    for number in range(6):
        rig.feed(Arrived(rig.request(f"r{number}", b"x" * 4 * 50_000)))
    assert {engine for _, _, engine in rig.dispatches} == {"long"}


def test_a_retry_goes_elsewhere_and_a_client_error_goes_nowhere() -> None:
    rig = Rig(Settings(), engines=3)
    rig.feed(Arrived(rig.request("r")))
    attempts = sorted(rig.sent)
    rig.feed(Ended(attempts[0], Outcome.UNREACHABLE))
    tried = [engine for _, _, engine in rig.dispatches]
    assert len(set(tried)) == 2
    rig.feed(Ended(max(rig.sent), Outcome.REJECTED, True, 400))
    assert len(rig.dispatches) == 2
    assert rig.cluster.in_flight() == 0


def test_retries_stay_within_their_budget() -> None:
    """The budget counts prompt tokens: with none saved and none earned, nothing is tried again."""
    settings = Settings(retry_ratio=0.0, retry_tokens_per_s=0.0, retry_tokens_max=0.0)
    rig = Rig(settings, engines=3)
    rig.feed(Arrived(rig.request("r", b"x" * 400)))
    rig.feed(Ended(max(rig.sent), Outcome.UNREACHABLE))
    assert len(rig.dispatches) == 2, "nothing was computed, so that nothing is to be paid"
    rig.feed(Ended(max(rig.sent), Outcome.FAILED))
    assert len(rig.dispatches) == 2
    assert rig.ended == {"r": "failed"}


def test_estimates_of_prompts_follow_what_engines_count() -> None:
    rig = Rig(Settings(), engines=1)
    for number in range(80):
        rig.feed(Arrived(rig.request(f"r{number}", b"x" * 6000, output=1)))
        rig.feed(Ended(max(rig.sent), Outcome.DONE, True, 200, Usage(3000, 1, 0, "stop")))
    rig.feed(Arrived(rig.request("last", b"x" * 6000)))
    decision = rig.cluster.decision("last")
    assert decision is not None
    assert abs(decision.prompt_tokens_estimate - 3000) < 150


def test_an_engine_started_anew_is_not_blamed_for_what_the_former_process_failed() -> None:
    rig = Rig(Settings(failures_suspect=1, failures_eject=1), engines=2)
    rig.feed(Observed("e0", Snapshot(engine="vllm", running=0, started_at_unix_s=100.0), rig.now))
    while rig.engines["e0"].taken == 0:
        rig.feed(Arrived(rig.request(f"r{len(rig.arrived)}")))
    attempt = next(attempt for attempt, sent in rig.sent.items() if sent.engine.id == "e0")
    rig.feed(Ended(attempt, Outcome.LOST))
    assert {view.id: view.state for view in rig.cluster.instances()}["e0"] == "ejected"
    rig.feed(Observed("e0", Snapshot(engine="vllm", running=0, started_at_unix_s=200.0), rig.now))
    assert {view.id: view.state for view in rig.cluster.instances()}["e0"] == "ready"


def test_what_runs_on_a_removed_instance_is_tried_elsewhere() -> None:
    rig = Rig(Settings(), engines=2)
    rig.feed(Arrived(rig.request("r", output=500)))
    ((_, _, first),) = rig.dispatches
    rig.feed(Withdrawn(first, drain=False))
    rig.run()
    rig.check_over()
    assert [engine for _, _, engine in rig.dispatches] == [first, ({"e0", "e1"} - {first}).pop()]
    assert rig.ended == {"r": "done"}
