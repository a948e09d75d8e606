"""Fairness between tenants at the door: a flood of one does not hold up another."""

from isochrone.nouns.events import Arrived
from isochrone.nouns.instant import SECOND
from isochrone.nouns.settings import Settings
from tests.support.rig import MODEL, Rig


def flood(without: frozenset[str] = frozenset(), tenants: tuple[str, ...] = ("greedy", "modest")) -> Rig:
    """80 long prompts of one tenant at once, then 8 of another, on two instances."""
    rig = Rig(Settings(samples_warm=0, without=without), engines=2)
    for number in range(80):
        rig.feed(Arrived(rig.request(f"g{number}", b"%03d" % number * 4_000, output=5, tenant=tenants[0])))
    for number in range(8):
        text = b"m%02d" % number * 4_000
        rig.at(rig.now + SECOND // 2, Arrived(rig.request(f"m{number}", text, output=5, tenant=tenants[1])))
    rig.run()
    rig.check_over()
    return rig


def last_of_modest(rig: Rig) -> int:
    """How many of all requests were dispatched before the modest tenant's last one."""
    return max(place for place, (_, request, _) in enumerate(rig.dispatches) if request.startswith("m"))


def test_the_tenant_that_was_served_least_goes_first() -> None:
    fair, unfair = flood(), flood(frozenset({"fairness"}))
    assert last_of_modest(fair) < 40
    assert last_of_modest(unfair) > 60


def test_one_tenant_costs_nothing_and_changes_nothing() -> None:
    alone = flood(tenants=("one", "one"))
    assert alone.cluster._world.pools[MODEL].fairness is None
    off = flood(frozenset({"fairness"}), tenants=("one", "one"))
    assert alone.dispatches == off.dispatches


def test_counters_hold_what_was_given() -> None:
    rig = flood()
    fairness = rig.cluster._world.pools[MODEL].fairness
    assert fairness is not None
    assert fairness.active == 0
    # 80 and 8 prompts of about 3,000 tokens and 5 output tokens; what was sent before the second tenant is not counted
    each = fairness.counter("modest") / 8
    assert 0 < each < 12_000
    assert 50 * each < fairness.counter("greedy") <= 82 * each


def test_priority_goes_before_fairness() -> None:
    rig = Rig(Settings(samples_warm=0), engines=2)
    for number in range(60):
        rig.feed(Arrived(rig.request(f"a{number}", b"%03d" % number * 4_000, output=5, tenant="a")))
    for number in range(4):
        rig.feed(Arrived(rig.request(f"b{number}", b"b%02d" % number * 4_000, output=5, tenant="b")))
    for number in range(4):
        text = b"u%02d" % number * 4_000
        rig.feed(Arrived(rig.request(f"u{number}", text, output=5, tenant="a", priority=1)))
    sent = len(rig.dispatches)
    rig.run()
    rig.check_over()
    assert {request[0] for _, request, _ in rig.dispatches[sent : sent + 4]} == {"u"}


def test_what_an_instance_failed_is_refunded() -> None:
    rig = Rig(Settings(samples_warm=0, attempts_max=1), engines=1)
    rig._mode("e0", "broken")
    rig.feed(Arrived(rig.request("first", b"x" * 4_000, tenant="a")))
    rig.feed(Arrived(rig.request("second", b"y" * 4_000, tenant="b")))
    rig.run()
    rig.check_over()
    fairness = rig.cluster._world.pools[MODEL].fairness
    assert fairness is not None
    assert fairness.counter("b") == 0
