"""Shaping and generating."""

import itertools
import random
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from isochrone.simulator import draws
from isochrone.simulator.clients import draw
from isochrone.simulator.generators import GENERATORS, generate
from isochrone.simulator.shaping import Part, part_of, shaped
from isochrone.simulator.workload import BadWorkload, Call, Workload

SECOND = 10**9


def capacity(prompt: float, uncached: float, output: float) -> float:
    assert prompt >= uncached > 0
    assert output > 0
    return 50.0


def steady(count: int = 400) -> Workload:
    return Workload("w", [Call(k * SECOND // 10, 100, 10, ids=(k % 7,), session=k % 40) for k in range(count)])


def test_more_load_is_salted_copies() -> None:
    shape = shaped(steady(), 1, rate_scale=2.5)
    counts = [sum(call.copy == copy for call in shape.calls) for copy in range(3)]
    assert counts[:2] == [400, 400]
    assert 100 < counts[2] < 300
    assert [call.at for call in shape.calls] == sorted(call.at for call in shape.calls)
    assert any("salted copies" in note for note in shape.notes)
    assert shaped(steady(), 1, 2.5).calls == shape.calls, "the same seed gives the same calls"
    assert shaped(steady(), 2, 2.5).calls != shape.calls


def test_less_load_leaves_whole_sessions_out() -> None:
    kept = {call.session for call in shaped(steady(), 3, 0.5).calls}
    assert 8 <= len(kept) <= 32
    assert sum(call.session in kept for call in steady().calls) == len(shaped(steady(), 3, 0.5).calls)


def test_compressed_time_is_marked() -> None:
    shape = shaped(steady(), 1, time_scale=2.0)
    assert shape.calls[-1].at == steady().calls[-1].at // 2
    assert any("time compressed" in note for note in shape.notes)


def test_ticks_are_spread() -> None:
    ticked = Workload("t", [Call(k // 10 * 3 * SECOND, 10, 1) for k in range(200)])
    shape = shaped(ticked, 1)
    assert len({call.at for call in shape.calls}) > 190
    assert all(0 <= call.at < 60 * SECOND for call in shape.calls)
    assert any("ticks of 3 s" in note for note in shape.notes)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_absurd_scales_are_refused(scale: float) -> None:
    with pytest.raises(BadWorkload, match="rate scale"):
        shaped(steady(), 1, scale)


@pytest.mark.parametrize("name", sorted(set(GENERATORS) - {"lengths", "servegen"}))
def test_generated_load_has_the_rate_that_was_asked_for(name: str) -> None:
    workload = generate(f"generate:{name},rate=40,seconds=100", 1, capacity)
    assert len(workload.calls) == pytest.approx(4000, rel=0.35)
    assert [call.at for call in workload.calls] == sorted(call.at for call in workload.calls)
    for call in workload.calls:
        assert call.prompt_tokens >= 1
        assert call.output_tokens >= 1
        assert len(call.ids) <= call.prompt_tokens // workload.block_tokens
    assert generate(f"generate:{name},rate=40,seconds=100", 1, capacity).calls == workload.calls


def test_load_is_a_share_of_what_the_instances_carry() -> None:
    workload = generate("generate:poisson,load=0.5,seconds=200", 1, capacity)
    assert len(workload.calls) == pytest.approx(0.5 * 50 * 200, rel=0.1)


def test_a_number_of_requests() -> None:
    assert len(generate("generate:sharegpt,requests=321", 5, capacity).calls) == 321


def test_sharegpt_shares_prefixes_in_groups() -> None:
    calls = generate("generate:sharegpt,requests=4000,share=0.3,groups=4", 1, capacity).calls
    shared = [call for call in calls if call.ids]
    assert len(shared) == pytest.approx(1200, rel=0.15)
    assert len({call.ids for call in shared}) == 4
    assert min(call.prompt_tokens for call in shared) > 512


def test_sessions_grow_and_keep_their_beginning() -> None:
    calls = generate("generate:sessions,rate=20,seconds=60", 1, capacity).calls
    by_session: dict[int, list[Call]] = {}
    for call in calls:
        by_session.setdefault(call.session, []).append(call)
    longest = max(by_session.values(), key=len)
    assert len(longest) >= 4
    for before, after in itertools.pairwise(longest):
        assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
        assert after.ids[: len(before.ids)] == before.ids
        assert after.gap is not None
    assert longest[0].gap is None


def test_bursts_are_as_bursty_as_asked() -> None:
    for cv in (1.0, 3.0):
        arrivals = draws.Arrivals(random.Random(1), 100.0, cv)
        at = [arrivals.next() for _ in range(20_000)]
        gaps = [after - before for before, after in itertools.pairwise(at)]
        assert fmean(gaps) == pytest.approx(1e7, rel=0.1)
        assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.1)


def test_quantiles_come_back() -> None:
    chance = random.Random(1)
    drawn = sorted(draws.SHAREGPT_OUTPUT.draw(chance) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(286, rel=0.05)
    assert drawn[18_000] == pytest.approx(682, rel=0.05)
    assert draws.SHAREGPT_OUTPUT.mean() == pytest.approx(fmean(drawn), rel=0.03)
    lengths = [draws.log_normal(chance, 500.0, 1.5) for _ in range(20_000)]
    assert fmean(lengths) == pytest.approx(500, rel=0.06)


CLIENTS = """\
{"client":0,"windows_600s":[[0,2.0,1.0,"Gamma",1.0,0.5],[600,9.0,1.0,"Weibull",1.0,0.1111]],"lengths":{"0":{\
"input_tokens":{"mean":50,"q":[10,20,30,40,45,50,55,60,65,70,80,90,95,100]},\
"output_tokens":{"mean":5,"q":[1,2,3,4,4,5,5,6,6,7,8,9,10,11]}}}}
{"client":1,"windows_600s":[[0,3.0,1.0,"Gamma",1.0,0.33333]],"lengths":null}
"""


def test_production_clients(tmp_path: Path) -> None:
    path = tmp_path / "clients.jsonl"
    path.write_text(CLIENTS)
    calls = draw(str(path), random.Random(1), 0.0, 600.0, 1.0)
    by_client = [sum(call.route == f"client-{number}" for call in calls) for number in (0, 1)]
    assert by_client[0] == pytest.approx(1200, rel=0.1)
    assert by_client[1] == pytest.approx(1800, rel=0.1)
    assert all(10 <= call.prompt_tokens <= 100 for call in calls)
    later = draw(str(path), random.Random(1), 600.0, 100.0, 2.0)
    assert len(later) == pytest.approx(1800, rel=0.1)
    assert max(call.at for call in later) < 100 * SECOND


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("generate:sharegtp", "did you mean 'sharegpt'?"),
        ("generate:poisson,rat=3", "did you mean 'rate'?"),
        ("generate:poisson,rate=fast", "expected a number, found 'fast'"),
        ("generate:poisson,rate=-1", "parameter 'rate' of 'poisson': expected 0 to 1e+06, found '-1'"),
        ("generate:poisson,prompt=0", "parameter 'prompt' of 'poisson': expected 1 to 1e+07"),
        ("generate:poisson,output=1e8", "expected 1 to 1e+07"),
        ("generate:poisson,rate=nan", "expected 0 to 1e+06"),
        ("generate:poisson,cv=0", "expected 0.01 to 100"),
        ("generate:prefix,groups=0", "expected 1 to 1e+06"),
        ("generate:sessions,turns=0", "expected 1 to 10000"),
        ("generate:sharegpt,share=1.5", "expected 0 to 1"),
        ("generate:poisson,rate=0,load=0", "expected 0.001 to 1000"),
        ("generate:lengths", "needs file=PATH"),
        ("generate:poisson,requests=99000000", "expected 0 to 1e+07"),
    ],
)
def test_wrong_specs_are_explained(spec: str, said: str) -> None:
    with pytest.raises(BadWorkload) as refused:
        generate(spec, 1, capacity)
    assert said in str(refused.value)


def test_a_part_of_a_workload() -> None:
    part = part_of(steady(), Part(10.0, 20.0))
    assert [call.at for call in part.calls] == [k * SECOND // 10 for k in range(100)]
    assert part.calls[0].session == 100 % 40
    assert part.notes == ["100 of its 400 requests, from 10 s to 20 s"]
    assert part_of(steady(), Part(39.0)).notes == ["10 of its 400 requests, from 39 s to the end"]
    first = part_of(steady(), Part(requests=5))
    assert first.calls == steady().calls[:5]
    assert first.notes == ["5 of its 400 requests"]
    assert part_of(steady(), Part(10.0, 20.0, 7)).calls == part.calls[:7]
    assert part_of(steady(), Part()).calls == steady().calls
    with pytest.raises(BadWorkload, match="no request arrives in that part of the workload, which lasts 40 s"):
        part_of(steady(), Part(50.0))


def test_more_copies_than_fit_are_refused() -> None:
    with pytest.raises(BadWorkload, match="at most 4,000"):
        shaped(steady(), 1, 4001.0)
    with pytest.raises(BadWorkload, match="3000 times 4,000 requests are more than 10,000,000"):
        shaped(steady(4000), 1, 3000.0)
