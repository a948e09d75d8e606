"""Slow instances at the door: found, given less, probed, forgiven; and classes of their own."""

import random
from collections import Counter
from itertools import pairwise

from isochrone.instances.classes import SETTLES_AFTER_NS
from isochrone.nouns.events import Arrived
from isochrone.nouns.instant import SECOND, nanoseconds
from isochrone.nouns.settings import Settings
from tests.support.rig import Engine, Rig

STEP_S = 0.02


def rig_with(paces: dict[str, float], without: frozenset[str] = frozenset()) -> Rig:
    rig = Rig(Settings(without=without), engines=0)
    for name, pace in paces.items():
        rig.join(Engine(name, step_s=STEP_S * pace, token_s=60e-6 * pace))
    return rig


def load(rig: Rig, seconds: float, per_s: float, mark: str, output: int = 60) -> None:
    """Poisson arrivals of small requests from now on."""
    chance = random.Random(mark)
    at, number = rig.now, 0
    while at < rig.now + nanoseconds(seconds):
        at += nanoseconds(chance.expovariate(per_s))
        text = (f"{mark}{number}-" * 100).encode()
        rig.at(at, Arrived(rig.request(f"{mark}{number}", text, output=output)))
        number += 1


def slow(rig: Rig) -> set[str]:
    return {i.id for i in rig.cluster._world.table.by_id.values() if i.slowness.slow(i.level)}


def test_a_slow_instance_is_found_and_given_less_work() -> None:
    rig = rig_with({"a": 1, "b": 1, "c": 1, "d": 2.5})
    load(rig, 30, 6, "x")
    rig.run(until=rig.now + 40 * SECOND)
    assert slow(rig) == {"d"}
    taken = Counter(engine for at, _, engine in rig.dispatches if at > 15 * SECOND)
    assert taken["d"] < 0.6 * sum(taken.values()) / 4
    without = rig_with({"a": 1, "b": 1, "c": 1, "d": 2.5}, frozenset({"slowness"}))
    load(without, 30, 6, "x")
    without.run(until=without.now + 40 * SECOND)
    blind = Counter(engine for at, _, engine in without.dispatches if at > 15 * SECOND)
    assert blind["d"] > taken["d"]


def test_equals_under_load_are_not_slow() -> None:
    rig = rig_with(dict.fromkeys("abcd", 1))
    load(rig, 60, 8, "x")
    rig.run(until=rig.now + 70 * SECOND)
    assert not slow(rig)


def test_who_has_recovered_is_probed_and_forgiven() -> None:
    """Traffic so light that it never needs the slow one: without probes it would be slow for ever."""
    rig = rig_with({"a": 1, "b": 1, "c": 1, "d": 3})
    load(rig, 40, 6, "x")
    rig.run(until=rig.now + 50 * SECOND)
    assert slow(rig) == {"d"}
    rig.engines["d"].step_s, rig.engines["d"].token_s = STEP_S, 60e-6
    begun = rig.now
    load(rig, 180, 0.7, "y")
    rig.run(until=begun + 180 * SECOND)
    visits = [at for at, _, engine in rig.dispatches if engine == "d" and at > begun]
    assert not slow(rig), rig.cluster._world.table.by_id["d"].level.value
    assert visits


def test_probes_are_small_and_not_more_than_one_in_five_seconds() -> None:
    rig = rig_with({"a": 1, "b": 1, "c": 1, "d": 6})
    load(rig, 40, 6, "x")
    rig.run(until=rig.now + 60 * SECOND)
    assert slow(rig) == {"d"}
    begun = rig.now
    load(rig, 100, 0.7, "y")
    rig.run(until=begun + 100 * SECOND)
    visits = [at for at, _, engine in rig.dispatches if engine == "d" and at > begun]
    assert 5 <= len(visits) <= 21
    assert all(later - before >= 5 * SECOND for before, later in pairwise(visits))


def test_who_differs_for_ten_minutes_is_a_class_of_its_own() -> None:
    rig = rig_with({"a": 1, "b": 1, "c": 1, "d": 2.5})
    until = rig.now + SETTLES_AFTER_NS + 120 * SECOND
    for part in range(24):
        rig.at(rig.now + part * 30 * SECOND, Arrived(rig.request(f"first{part}", b"%d" % part * 100)))
    load(rig, 720, 2.5, "x")
    rig.run(until=until)
    classes = {view.id: view.device_class for view in rig.cluster.instances()}
    assert classes["d"] not in (classes["a"], "unknown")
    assert classes["d"].partition("~")[0] == classes["a"] == classes["b"] == classes["c"]
    assert not slow(rig)
    step = {i.id: i.step_times.predict((1.0, 4.0, 1000.0, 0.0)) * i.level.factor
            for i in rig.cluster._world.table.by_id.values()}  # fmt: skip
    assert 2.0 < step["d"] / step["a"] < 3.0


def test_own_classes_can_be_left_out() -> None:
    rig = rig_with({"a": 1, "b": 1, "c": 1, "d": 2.5}, frozenset({"own-class"}))
    load(rig, 720, 2.5, "x")
    rig.run(until=rig.now + SETTLES_AFTER_NS + 120 * SECOND)
    assert len({view.device_class for view in rig.cluster.instances()}) == 1
    assert slow(rig) == {"d"}


def test_labelled_instances_stay_in_their_class() -> None:
    rig = Rig(Settings(), engines=0)
    for name, pace in {"a": 1, "b": 1, "c": 1, "d": 2.5}.items():
        rig.join(Engine(name, step_s=STEP_S * pace, token_s=60e-6 * pace), device_class="h100")
    load(rig, 720, 2.5, "x")
    rig.run(until=rig.now + SETTLES_AFTER_NS + 120 * SECOND)
    assert {view.device_class for view in rig.cluster.instances()} == {"h100"}
    assert slow(rig) == {"d"}


def test_a_warm_start_brings_slowness_and_classes_back() -> None:
    first = rig_with({"a": 1, "b": 1, "c": 1, "d": 2.5})
    load(first, 40, 6, "x")
    first.run(until=first.now + 50 * SECOND)
    assert slow(first) == {"d"}
    table = first.cluster._world.table
    table.settle_apart(table.by_id["d"])
    table.by_id["c"].level.observe(1.0, 1.0)
    table.by_id["c"].slowness.believe(table.by_id["c"].level)
    again = rig_with({"a": 1, "b": 1})
    again.cluster.restore(first.cluster.learned())
    again.join(Engine("c"))
    again.join(Engine("d"))
    views = {view.id: view for view in again.cluster.instances()}
    assert views["d"].device_class == table.by_id["d"].class_name != views["a"].device_class
    assert [views[name].slow for name in "abcd"] == [False, False, True, False]
    assert again.cluster._world.any_slow
    assert views["d"].class_shift_ratio == 1.0


def test_an_operator_sees_failures_and_classes_that_move() -> None:
    rig = rig_with(dict.fromkeys("abcd", 1))
    load(rig, 60, 4, "x")
    rig.run(until=rig.now + 70 * SECOND)
    rig.engines["a"].mode = "broken"
    for engine in rig.engines.values():
        engine.step_s *= 1.6
    load(rig, 40, 6, "y")
    rig.run(until=rig.now + 30 * SECOND)
    views = {view.id: view for view in rig.cluster.instances()}
    assert all(view.class_shift_ratio > 1.15 for view in views.values())
    assert not any(view.slow for view in views.values()), "all of them: nobody is to blame"
    assert views["a"].failure_ratio > 0 == views["b"].failure_ratio
