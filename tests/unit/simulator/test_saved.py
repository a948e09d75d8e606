"""Runs that are kept in a file and not made again."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from isochrone.nouns.settings import Settings
from isochrone.simulator import saved
from isochrone.simulator.fleet import fleet
from isochrone.simulator.plan import Plan
from isochrone.simulator.saved import SavedRuns
from isochrone.simulator.sweep import Arm, Job, run_job
from isochrone.simulator.workload import BadWorkload

PLAN = Plan(Settings(), fleet([("h100-8b", 2)], {}, {}), samples=10)
JOB = Job("generate:poisson,rate=5,seconds=3", Arm("ours", "equal-cost"), PLAN, seed=0, curves=True)


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.jsonl")
    result = run_job(JOB)
    SavedRuns(path).add(JOB, result)
    assert SavedRuns(path).find(JOB) == result


OTHERS = [
    replace(JOB, seed=1),
    replace(JOB, rate_scale=2.0),
    replace(JOB, warm_s=1.0),
    replace(JOB, workload="generate:poisson,rate=6,seconds=3"),
    replace(JOB, arm=Arm("ours", "round-robin")),
    replace(JOB, arm=Arm("ours", "equal-cost", {"without": frozenset({"imposed"})})),
    replace(JOB, plan=replace(PLAN, settings=Settings(work_price=4.0))),
    replace(JOB, plan=replace(PLAN, fleet=fleet([("h100-8b", 3)], {}, {}))),
    replace(JOB, plan=replace(PLAN, fleet=fleet([("h100-8b", 2)], {1: 2.0}, {}))),
]


@pytest.mark.parametrize("other", OTHERS)
def test_another_run_is_not_taken_for_it(tmp_path: Path, other: Job) -> None:
    runs = SavedRuns(str(tmp_path / "runs.jsonl"))
    assert runs.key(other) != runs.key(JOB)


def test_a_changed_workload_file_or_plugin_is_another_run(tmp_path: Path) -> None:
    path, trace = str(tmp_path / "runs.jsonl"), tmp_path / "t.jsonl"
    trace.write_text('{"t_ms":0,"input_tokens":4,"output_tokens":2}\n')
    job = replace(JOB, workload=str(trace))
    before = SavedRuns(path).key(job)
    assert SavedRuns(path, [b"a policy"]).key(job) != before
    trace.write_text('{"t_ms":0,"input_tokens":5,"output_tokens":2}\n')
    assert SavedRuns(path).key(job) != before
    drawn = replace(JOB, workload=f"generate:lengths,file={trace}")
    first = SavedRuns(path).key(drawn)
    trace.write_text('{"input_tokens":6,"output_tokens":2}\n')
    assert SavedRuns(path).key(drawn) != first
    trace.unlink()
    with pytest.raises(BadWorkload, match="cannot be read: No such file"):
        SavedRuns(path).key(drawn)


def test_changed_source_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = SavedRuns(str(tmp_path / "runs.jsonl")).key(JOB)
    monkeypatch.setattr(saved, "ROOMS", saved.ROOMS[1:])
    assert SavedRuns(str(tmp_path / "runs.jsonl")).key(JOB) != before


def test_sets_are_written_in_one_order(tmp_path: Path) -> None:
    runs = SavedRuns(str(tmp_path / "runs.jsonl"))
    names = [f"part-{k}" for k in range(20)]
    forth, back = (
        replace(JOB, arm=Arm("x", "equal-cost", {"without": frozenset(one)})) for one in (names, names[::-1])
    )
    assert runs.key(forth) == runs.key(back)


def test_a_line_cut_off_in_the_middle_costs_that_run_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first, second, third = (replace(JOB, seed=seed, curves=False) for seed in range(3))
    runs = SavedRuns(str(path))
    for job in (first, second):
        runs.add(job, run_job(job))
    path.write_bytes(path.read_bytes()[:-100])
    again = SavedRuns(str(path))
    assert again.find(first) is not None
    assert again.find(second) is None
    again.add(third, run_job(third))
    again.add(second, run_job(second))
    last = SavedRuns(str(path))
    assert all(last.find(job) is not None for job in (first, second, third))
    lines = path.read_bytes().splitlines()
    assert len(lines) == 4
    assert msgspec.json.decode(lines[-1])["seed"] == 1
