"""Parts that were left out do nothing, and the settings that nobody changed leave every part in."""

import pytest

from isochrone.nouns.events import Arrived, Configured
from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import Slo
from isochrone.nouns.settings import Settings
from isochrone.scheduling.parts import PARTS, effective
from tests.support.rig import Engine, Rig


def burst(*without: str, count: int = 60, slo: Slo | None = None) -> Rig:
    """Long and short prompts at once on two warm instances."""
    rig = Rig(Settings(samples_warm=0, without=frozenset(without), slo=slo), engines=2, token_s=100e-6)
    for number in range(count):
        size = 9_000 if number % 2 else 900
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % (1000 + number) * size, output=5)))
    return rig


def test_nothing_is_left_out_by_default() -> None:
    assert Settings().without == frozenset()
    assert effective(Settings()) == Settings()


def test_hold() -> None:
    assert len(burst("hold").dispatches) == 60
    assert len(burst().dispatches) < 60


def test_order() -> None:
    """With the key short work goes ahead of long work that came just before it; without it nobody overtakes."""
    rig = burst("order")
    held = rig.cluster._world.pools["m"].queue.in_order()
    assert [one.arrived_at for one in held] == sorted(one.arrived_at for one in held)
    assert len({one.key for one in held}) == 1, "all came at one moment"
    assert len({one.key for one in burst().cluster._world.pools["m"].queue.in_order()}) > 1


def test_shed() -> None:
    slo = Slo(0.5, None, True)
    shed, kept = burst(slo=slo), burst("shed", slo=slo)
    for rig in (shed, kept):
        rig.run()
        rig.check_over()
    assert "refused:slo_unattainable" in shed.ended.values()
    assert set(kept.ended.values()) == {"done"}


def test_prefix() -> None:
    for without, hit in ((frozenset[str](), True), (frozenset({"prefix"}), False)):
        rig = Rig(Settings(without=without), engines=2)
        for number in range(2):
            rig.feed(Arrived(rig.request(f"r{number}", b"same" * 4_000)))
            rig.run()
        decision = rig.cluster.decision("r1")
        assert decision is not None
        assert any(one.hit_tokens for one in rig.cluster.candidates(decision)) == hit


def test_lengths() -> None:
    for without in (frozenset[str](), frozenset({"lengths"})):
        rig = Rig(Settings(without=without), engines=2)
        for number in range(80):
            rig.at(SECOND + number * SECOND // 20, Arrived(rig.request(f"r{number}", b"x" * 100, output=8)))
        rig.run()
        rig.feed(Arrived(rig.request("last", b"x" * 100, output=8)))
        decision = rig.cluster.decision("last")
        assert decision is not None
        assert decision.output_tokens_estimate is not None
        assert (decision.output_tokens_estimate < 30) == (not without)


def test_slow_start() -> None:
    for without, ramps in ((frozenset[str](), True), (frozenset({"slow-start"}), False)):
        rig = Rig(Settings(samples_warm=0, without=without), engines=1)
        for number in range(40):
            rig.feed(Arrived(rig.request(f"r{number}", b"%d" % (1000 + number) * 9_000, output=5)))
        rig.join(Engine("late"))
        rig.feed(Arrived(rig.request("one", b"one" * 9_000, output=5)))
        rows = {row.id: row for row in rig.cluster._world.pools["m"].rows}
        assert (rows["late"].chunk_s < 0.5 * rows["e0"].chunk_s) == ramps
        assert rig.engines["late"].taken > 0, "idle, it takes the first one whatever the ramp says"


def test_instances_that_start_together_do_not_ramp() -> None:
    rig = Rig(Settings(), engines=3)
    assert all(instance.starts_at is None for instance in rig.cluster._world.table.by_id.values())


@pytest.mark.parametrize("part", sorted(PARTS))
def test_each_can_be_taken_out_while_requests_wait(part: str) -> None:
    rig = burst()
    rig.feed(Configured(Settings(samples_warm=0, without=frozenset({part}))))
    rig.run()
    rig.check_over()
    assert set(rig.ended.values()) == {"done"}


@pytest.mark.parametrize(("without", "at_once"), [((), 1), (("cap",), 10)])
def test_cap(without: tuple[str, ...], at_once: int) -> None:
    """Engines give a token each 20 ms whatever they run; 60 % of a 30 ms target is less than that, so each takes one
    request at a time once that is known, and all the rest waits."""
    settings = Settings(samples_warm=20, cap_ratio=0.6, slo=Slo(None, 0.03), without=frozenset(without))
    rig = Rig(settings, engines=2)
    for number in range(60):
        rig.at(rig.now + number * SECOND // 4, Arrived(rig.request(f"w{number}", b"%d" % number * 100, output=60)))
    rig.run()
    for number in range(20):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % (1000 + number) * 100, output=60)))
    assert [len(engine.running) for engine in rig.engines.values()] == [at_once, at_once]
    rig.run()
    rig.check_over()
    assert set(rig.ended.values()) == {"done"}
