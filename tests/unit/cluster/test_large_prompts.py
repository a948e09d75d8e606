"""Prompts that fit only an empty instance: one is emptied for them."""

from isochrone.nouns.commands import Dispatch
from isochrone.nouns.events import Arrived, ClientLeft, Observed
from isochrone.nouns.instance import Snapshot
from isochrone.nouns.instant import SECOND
from isochrone.nouns.settings import Settings
from isochrone.scheduling.reservation import RESERVED_NS
from tests.support.rig import MODEL, Rig

CAPACITY = 20_000
LARGE = b"L" * 4 * 15_000
"""About 15,000 of 20,000 tokens."""


def busy(without: frozenset[str] = frozenset(), output: int = 400) -> Rig:
    """Two instances, each with KV memory for 20,000 tokens and half of it in use by streams that go on for 8 s."""
    rig = Rig(Settings(samples_warm=0, without=without, scrape_age_s_max=1000.0), engines=2)
    for name in rig.engines:
        rig.feed(Observed(name, Snapshot(engine="vllm", kv_usage_ratio=0.0, kv_capacity_tokens=CAPACITY), rig.now))
    for number in range(8):
        rig.feed(Arrived(rig.request(f"s{number}", b"%03d" % number * 4 * 800, output=output)))
    rig._beat = lambda engine_id: None  # type: ignore[method-assign]  # no scrape without KV numbers comes between
    rig.run(until=rig.now + SECOND)
    usages = [view.kv_usage_ratio for view in rig.cluster.instances()]
    assert all(usage is not None and 0.3 < usage < 0.7 for usage in usages), usages
    return rig


def trickle(rig: Rig, count: int = 40, every_ns: int = SECOND // 10) -> None:
    """Small requests that go on arriving, each of about 1,600 tokens and 2 s."""
    for number in range(count):
        text = b"t%03d" % number * 4 * 400
        rig.at(rig.now + number * every_ns, Arrived(rig.request(f"t{number}", text, output=100)))


def when(rig: Rig, name: str) -> float:
    return next(at for at, request, _ in rig.dispatches if request == name) / SECOND


def test_an_instance_is_emptied_for_a_prompt_that_fits_no_other_way() -> None:
    rig = busy()
    rig.feed(Arrived(rig.request("large", LARGE, output=5)))
    pool = rig.cluster._world.pools[MODEL]
    assert pool.reservation is not None
    kept = rig.cluster._world.table.at(pool.reservation.slot).id
    assert "large" not in {request for _, request, _ in rig.dispatches}
    trickle(rig)
    rig.run()
    rig.check_over()
    assert set(rig.ended.values()) == {"done"}
    at, _, where = next(entry for entry in rig.dispatches if entry[1] == "large")
    assert where == kept
    meanwhile = {engine for t, request, engine in rig.dispatches if request.startswith("t") and t < at}
    assert meanwhile == set(rig.engines) - {kept}, "the others took what came, the kept one nothing"
    assert pool.reservation is None
    assert all(instance.reserved_for is None for instance in rig.cluster._world.table.by_id.values())


def test_without_reservation_it_goes_where_it_does_not_fit() -> None:
    rig = busy(frozenset({"reservation", "kv-limit"}))
    rig.feed(Arrived(rig.request("large", LARGE, output=5)))
    assert rig.dispatches[-1][1] == "large"


def test_the_wait_is_bounded() -> None:
    rig = busy(output=3_000)
    rig.feed(Arrived(rig.request("large", LARGE, output=5)))
    begun = rig.now / SECOND
    rig.run()
    rig.check_over()
    assert RESERVED_NS / SECOND <= when(rig, "large") - begun <= RESERVED_NS / SECOND + 0.1


def test_one_at_a_time_and_a_client_that_leaves_frees_the_instance() -> None:
    rig = busy()
    rig.feed(Arrived(rig.request("first", LARGE, output=5)))
    rig.feed(Arrived(rig.request("second", LARGE + b"2", output=5)))
    pool = rig.cluster._world.pools[MODEL]
    assert [one.reserved_for for one in rig.cluster._world.table.by_id.values()].count(None) == 1
    rig.feed(ClientLeft("first"))
    rig._end("first", "client_left")
    rig.run(until=rig.now + SECOND // 10)
    assert pool.reservation is not None
    assert pool.reservation.request == "second"
    rig.run()
    rig.check_over()
    assert rig.ended["second"] == "done"


def test_small_prompts_are_never_asked_about_room() -> None:
    rig = busy()
    commands = rig.cluster.handle(rig.now, Arrived(rig.request("small", b"s" * 4 * 1_000, output=5)))
    assert any(isinstance(command, Dispatch) for command in commands)


def test_a_reserved_instance_that_leaves_is_not_waited_for() -> None:
    rig = busy()
    rig.feed(Arrived(rig.request("large", LARGE, output=5)))
    pool = rig.cluster._world.pools[MODEL]
    assert pool.reservation is not None
    rig._withdraw(rig.cluster._world.table.at(pool.reservation.slot).id, True)
    rig.run()
    rig.check_over()
    assert rig.ended["large"] == "done"
