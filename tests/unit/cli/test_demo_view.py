"""What the demo prints."""

import io
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from isochrone.cli.demo import OBJECTIVES, Plan, command, settings
from isochrone.cli.demo_view import Progress, as_json, seconds_text, table
from isochrone.loadgen.report import Figures

GOOD = Figures(0.1, 0.9, 0.06, 3.0, 4.0, 0.98, 1.0, 0.5, 200, 900.0, {"127.0.0.1:1": 60, "127.0.0.1:2": 140})
BAD = replace(
    GOOD, ttft_p99_s=3.0, goodput_ratio=0.5, requests_per_instance={"127.0.0.1:1": 200}, errors={"http 503": 2}
)
PLAN = Plan(("round-robin", "least-request", "equal-cost"), 3, 20, 6, 1, 1.0)


def rendered() -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    console.print(table({"round-robin": BAD, "equal-cost": GOOD}, OBJECTIVES, 20.0, 0.0012))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_holds_every_figure() -> None:
    text = rendered()
    for part in (
        "900 ms",
        "3.00 s",
        "98.0%",
        "60 140",
        "200 0",
        "1.2 ms late",
        "2 http 503",
        "counts as 20 s",
        "2.5 times",
    ):
        assert part in text


def test_rounds_begin_with_another_policy() -> None:
    assert [PLAN.order(number)[0] for number in range(4)] == [*PLAN.policies, PLAN.policies[0]]
    assert all(sorted(PLAN.order(number)) == sorted(PLAN.policies) for number in range(3))


def test_json_has_the_promised_keys() -> None:
    made = json.loads(json.dumps(as_json({"equal-cost": GOOD}, {"equal-cost": [GOOD]}, settings(PLAN, 0.001))))
    assert made["policies"]["equal-cost"].keys() >= {
        "ttft_p50_s",
        "ttft_p99_s",
        "tpot_p99_s",
        "e2e_p99_s",
        "goodput_ratio",
        "served_ratio",
        "cache_hit_ratio",
        "requests_per_instance",
    }
    assert made["settings"]["seed"] == 1


def test_seconds_read_well() -> None:
    assert (seconds_text(0.0123), seconds_text(12.3)) == ("12 ms", "12.30 s")


def test_without_a_terminal_there_is_a_line_for_each_run() -> None:
    console = Console(file=io.StringIO(), width=120)
    with Progress(console, 2) as progress:
        progress.begin(10)
        for number in (1, 2):
            progress.run("equal-cost", number)
            progress.step()
            progress.done("equal-cost", number, GOOD)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines if line.strip()] == ["1/2", "2/2"]


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--policies", ","], ["--seconds", "0"]])
def test_bad_options_are_usage_errors(arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2


def test_an_unknown_policy_is_answered_with_the_nearest() -> None:
    said = CliRunner().invoke(command, ["--policies", "least-reqest"])
    assert said.exit_code == 2
    assert "'least-request'" in said.output
