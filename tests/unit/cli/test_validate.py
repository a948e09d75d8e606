"""`isochrone validate`: what it runs, what it says where data are absent, and how calls are put into HTTP."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from isochrone.cli import validate_engine
from isochrone.cli.live import IDS, Unusable, as_load, served
from isochrone.cli.main import main
from isochrone.cli.validate import command
from isochrone.loadgen.calls import Result
from isochrone.simulator.belief.checks import CHECKS
from isochrone.simulator.belief.finding import Finding, Verdict, compared
from isochrone.simulator.workload import Call, Workload


def result(tokens: int, error: str = "") -> Result:
    made = Result("default", True, 1.0, first_token_at=1.5, last_token_at=3.0, ended_at=3.1, status=200, error=error)
    made.tokens = tokens
    return made


def test_absent_data_are_named_and_no_check_is_left_out(tmp_path: Path) -> None:
    names = ",".join(check.name for check in CHECKS)
    ran = CliRunner().invoke(command, ["--traces", str(tmp_path), "--json", "--only", names])
    assert ran.exit_code == 0, ran.output
    checks = json.loads(ran.output)["checks"]
    assert set(checks) == {check.name for check in CHECKS}
    assert {check["verdict"] for check in checks.values()} == {"no data"}
    assert all(str(tmp_path) in check["headline"] for check in checks.values())


def test_a_finding_is_plain_data() -> None:
    row = compared("numpy's", np.float64(2.0), np.float64(3.0), "s")
    assert json.loads(msgspec.json.encode(row)) == {
        "what": "numpy's", "published": 2.0, "ours": 3.0, "unit": "s", "error": 0.5, "verdict": "shown", "many": 1,
    }  # fmt: skip


def test_absent_data_are_named_in_the_table_too(tmp_path: Path) -> None:
    ran = CliRunner().invoke(command, ["--traces", str(tmp_path), "--only", "mooncake"])
    assert ran.exit_code == 0, ran.output
    assert "mooncake_conversation.jsonl.gz" in ran.output
    assert "no data" in ran.output


def test_an_unknown_check_is_refused_with_the_nearest(tmp_path: Path) -> None:
    ran = CliRunner().invoke(command, ["--traces", str(tmp_path), "--only", "moncake"])
    assert ran.exit_code == 2
    assert "did you mean 'mooncake'?" in ran.output


def test_help_names_it() -> None:
    assert "validate" in CliRunner().invoke(main, ["--help"]).output


def test_an_engine_that_is_not_there_is_said(tmp_path: Path) -> None:
    options = ["--traces", str(tmp_path), "--json", "--only", "engine", "--engine", "http://127.0.0.1:1"]
    ran = CliRunner().invoke(command, options)
    check = json.loads(ran.output)["checks"]["engine"]
    assert check["verdict"] == "not run"
    assert "not measured" in check["headline"]


def test_prompts_are_as_long_as_asked_and_share_their_blocks() -> None:
    calls = [Call(0, 40, 7, ids=(5, 6)), Call(10, 50, 8, ids=(5,)), Call(20, 3, 2)]
    workload = Workload("three", calls, 16)
    bodies = [msgspec.json.decode(turn.call.body) for (turn,) in as_load(workload, "m").sessions]
    prompts = [body["prompt"] for body in bodies]
    assert [len(prompt) for prompt in prompts] == [40, 50, 3]
    assert prompts[0][:16] == prompts[1][:16]
    assert prompts[0][16:32] != prompts[1][16:32]
    assert all(one in IDS for prompt in prompts for one in prompt)
    assert [body["max_tokens"] for body in bodies] == [7, 8, 2]
    assert {body["temperature"] for body in bodies} == {0}
    salted = [msgspec.json.decode(turn.call.body)["prompt"] for (turn,) in as_load(workload, "m", "again").sessions]
    assert salted[2] != prompts[2]


def test_latencies_count_from_when_a_call_was_due() -> None:
    found = served([result(11)], Workload("one", [Call(0, 5, 11)]))
    assert found.ttft_s == pytest.approx([0.5])
    assert found.tpot_s == pytest.approx([0.15])


def test_calls_that_failed_or_ended_early_spoil_the_measurement() -> None:
    with pytest.raises(Unusable, match="1 of 1 calls failed: timeout"):
        served([result(11, "timeout")], Workload("one", [Call(0, 5, 11)]))
    with pytest.raises(Unusable, match="as long as"):
        served([result(9)], Workload("one", [Call(0, 5, 11)]))


@pytest.mark.parametrize("held", [True, False])
def test_a_noisy_machine_judges_nothing_whatever_came_out(held: bool) -> None:
    spread, drift = validate_engine.SPREAD_MAX, validate_engine.DRIFT_MAX
    for noise, verdict in (((spread, drift), Verdict.of(held)), ((spread * 1.1, 0.0), Verdict.NOT_RUN),
                           ((0.0, drift * 1.1), Verdict.NOT_RUN)):  # fmt: skip
        finding = Finding("engine", "", "", "", "", headline="3 of 12 figures hold")
        validate_engine.judge(finding, held, *noise, misfit=0.0)
        assert finding.verdict is verdict
        assert ("too noisy" in finding.headline) == (verdict is Verdict.NOT_RUN)
        assert "3 of 12" in finding.headline


def test_a_twin_that_does_not_describe_its_own_calibration_is_a_miss() -> None:
    finding = Finding("engine", "", "", "", "", headline="12 of 12 figures hold")
    validate_engine.judge(finding, True, 0.0, 0.0, misfit=validate_engine.MISFIT_MAX * 1.1)
    assert finding.verdict is Verdict.MISSES
    assert "does not describe its own calibration" in finding.headline
    noisy = Finding("engine", "", "", "", "")
    validate_engine.judge(noisy, True, 1.0, 0.0, misfit=1.0)
    assert noisy.verdict is Verdict.NOT_RUN
