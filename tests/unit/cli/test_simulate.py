"""`isochrone simulate` from the command line."""

import functools
import json
import os
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from isochrone.cli import simulate_runs
from isochrone.cli.main import main


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_json_page_and_table(tmp_path: Path) -> None:
    words = ["simulate", "-w", "generate:sharegpt,rate=20,seconds=10", "--instances", "2", "--seeds", "2"]
    page, out = tmp_path / "r.html", tmp_path / "r.json"
    made = call(*words, "--workers", "1", "--json", "--html", str(page), "--output", str(out))
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout)
    assert document == json.loads(out.read_bytes())
    assert list(document["policies"]) == ["equal-cost", "least-request"]
    ours = document["policies"]["equal-cost"]
    assert ours["served_ratio"] == 1.0
    assert ours["seeds"] == [0, 1]
    assert ours["intervals"]["ttft_p99_s"] is not None
    assert document["slo"] == {"ttft_s": 2.0, "ttft_times_unloaded_prefill": 2.0, "mean_tpot_s": 0.1}
    assert "equal-cost - least-request" in document["against"]
    text = page.read_text()
    assert text.count("<svg") >= 8
    assert "http" not in text, "nothing is loaded from elsewhere"
    table = call(*words[:-2], "--workers", "1")
    assert "\npolicy " in table.stdout
    assert "least-request" in table.stdout


def test_a_sweep_has_points(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(f'{{"t_ms":{k * 50},"input_tokens":400,"output_tokens":20}}\n' for k in range(100)))
    made = call(
        "simulate", "-w", str(trace), "--instances", "2,3", "--rate-scale", "0.5,2", "-p", "equal-cost",
        "--without", "imposed", "--set", "hold_slack_s=1", "--workers", "1", "--json",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout)
    assert [(point["rate_scale"], point["instances"]) for point in document["points"]] == [
        (0.5, 2), (0.5, 3), (2.0, 2), (2.0, 3)
    ]  # fmt: skip
    assert list(document["points"][0]["policies"]) == ["equal-cost", "equal-cost without imposed"]


def test_mixed_clusters_and_other_processes() -> None:
    made = call(
        "simulate", "-w", "generate:poisson,rate=10,seconds=5", "--instances", "3", "--profile", "h100-8b",
        "--profile", "a100-8b:1", "--slow", "0:2", "-p", "equal-cost,lmetric+admission", "--step-times", "1.2:0.1",
        "--workers", "2", "--json",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    told = "equal-cost told step times x1.2, each off by 0.1"
    assert list(json.loads(made.stdout)["policies"]) == ["equal-cost", "lmetric+admission", told]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-w", "generate:poison"], "did you mean 'poisson'?"),
        (["-w", "generate:poisson", "-p", "equal-cots"], "did you mean 'equal-cost'?"),
        (["-w", "generate:poisson", "--profile", "h100-8"], "did you mean 'h100-8b'?"),
        (["-w", "generate:poisson", "--profile", "h100-8b:x"], "is not NAME:COUNT"),
        (["-w", "generate:poisson", "--without", "impose"], "did you mean 'imposed'?"),
        (["-w", "generate:poisson", "--step-times", "1.2:x"], "expected a factor from 0.01 to 100"),
        (["-w", "generate:poisson", "--step-times", "1:3"], "a spread from 0 to 2"),
        (["-w", "generate:poisson", "--set", "hold_slak_s=1"], "did you mean 'hold_slack_s'?"),
        (["-w", "generate:poisson", "--set", "hold_slack_s=x"], "Expected `float`"),
        (["-w", "generate:poisson", "--rate-scale", "0"], "expected numbers above 0"),
        (["-w", "generate:prefix,shared=500000,rate=1"], "fit no instance"),
        (["-w", "/dev/nowhere.jsonl"], "there is no file '/dev/nowhere.jsonl'; drawn ones begin with 'generate:'"),
        (["-w", "sharegtp"], "did you mean 'generate:sharegpt'?"),
        (["-w", "generate:poisson,ratte=1"], "did you mean 'rate'?"),
        (["-w", "generate:poisson", "-p", "aibrix"], "did you mean 'aibrix-prefix-cache'?"),
        (["-w", "generate:poisson", "-p", "lmetric+admision"], "did you mean 'lmetric+admission'?"),
        (["-w", "generate:poisson", "-p", ","], "expected at least one policy"),
        (["-w", "generate:poisson", "--profile", "h100-8b:0"], "with a count of 1 or more"),
        (
            ["-w", "generate:poisson", "--profile", "h100-8b:2", "--instances", "3"],
            "the counts make 2",
        ),
        (
            ["-w", "generate:poisson", "--instances", "2.5"],
            "--instances: '2.5': expected a whole number",
        ),
        (["-w", "generate:poisson", "--instances", "2,-1"], "--instances: '-1': expected a whole number"),
        (["-w", "generate:poisson", "--instances", "10001"], "--instances: '10001': expected a whole number"),
        (["-w", "generate:poisson", "--set", "hold_slack_s"], "is not NAME=VALUE"),
        (
            ["-w", "generate:poisson", "--set", "scrape_interval_s=0"],
            "scrape_interval_s: 0: expected 0.001 or more",
        ),
        (["-w", "generate:poisson", "--set", "work_price=-1"], "--set work_price: -1: expected 0 or more"),
        (["-w", "generate:poisson", "--set", "policy=random"], "policies are named by --policy"),
        (["-w", "generate:poisson", "--set", "shadow=randon"], "did you mean 'random'?"),
        (["-w", "generate:poisson", "--set", 'without=["impose"]'], "did you mean 'imposed'?"),
        (["-w", "generate:poisson", "--slow", "0:inf"], "the factor is above 0"),
        (["-w", "generate:poisson", "--rate-scale", "nan"], "expected numbers above 0"),
        (["-w", "generate:poisson", "--window", "5"], "--window: '5': expected START:END in seconds"),
        (["-w", "generate:poisson", "--window", "5:5"], "expected START:END in seconds"),
        (["-w", "generate:poisson", "--window", "nan:"], "expected START:END in seconds"),
        (["-w", "generate:poisson", "--requests", "0"], "--requests"),
        (["-w", "generate:poisson", "--output", "/nowhere/r.json"], "'--output': '/nowhere/r.json' cannot be written"),
        (["-w", "generate:poisson", "--html", "/nowhere/r.html"], "'--html': '/nowhere/r.html' cannot be written"),
    ],
)
def test_wrong_words_are_explained(words: list[str], said: str) -> None:
    made = call("simulate", *words)
    assert made.exit_code == (1 if said.startswith("fit no") else 2)
    assert said in " ".join(made.output.split()), made.output


def test_a_comparison_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    words = ["simulate", "-w", "generate:poisson,rate=5,seconds=3", "--instances", "2", "--resume", str(runs), "--json"]
    first = call(*words, "-p", "equal-cost", "--workers", "1")
    assert "0 of 1 runs are there already" in first.stderr
    both = call(*words, "-p", "equal-cost,round-robin", "--seeds", "2", "--workers", "1")
    assert "1 of 4 runs are there already" in both.stderr
    assert len(runs.read_text().splitlines()) == 4
    again = call(*words, "-p", "equal-cost,round-robin", "--seeds", "2", "--workers", "1")
    assert "4 of 4 runs are there already" in again.stderr
    assert again.stdout == both.stdout
    assert call(*words[:-2], "/nowhere/runs.jsonl").exit_code == 1


def test_a_worker_that_is_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_runs, "load_policies", functools.partial(os._exit, 9))  # what a worker does first
    made = call("simulate", "-w", "generate:poisson,rate=5,seconds=3", "--instances", "2", "--workers", "2")
    assert made.exit_code == 1
    assert made.stderr.startswith("Error: a worker process was killed, probably for its memory: take fewer --workers")


def test_ray_that_is_not_there_or_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["simulate", "-w", "generate:poisson,rate=5,seconds=3", "--instances", "2", "--ray"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    made = call(*words, f"127.0.0.1:{port}")
    assert made.exit_code == 1
    assert made.stderr == f"Error: --ray 127.0.0.1:{port}: nobody answers there: Connection refused\n"
    monkeypatch.setitem(sys.modules, "ray", None)
    made = call(*words, "local")
    assert made.exit_code == 1
    assert "--ray local: Ray is not installed: pip install 'isochrone[ray]'" in made.stderr


def trace_of(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "conversation.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_the_nearest_file_is_named(tmp_path: Path) -> None:
    trace_of(tmp_path, "{}")
    made = call("simulate", "-w", str(tmp_path / "conversations.jsonl"))
    assert made.exit_code == 2
    assert f"did you mean '{tmp_path / 'conversation.jsonl'}'?" in made.stderr


def test_a_wrong_line_is_told_before_anything_runs(tmp_path: Path) -> None:
    good = '{"t_ms":0,"input_tokens":4,"output_tokens":2}'
    trace = trace_of(tmp_path, good, '{"t_ms":5,"input_tokens":4,"output_tokens":-2}')
    made = call("simulate", "-w", trace)
    assert made.exit_code == 1
    assert made.stderr == (
        f"Error: {trace}, line 2, field 'output_tokens': expected a whole number from 1 to 10,000,000, found -2\n"
    )


def test_each_cluster_of_a_sweep_has_to_hold_each_request_before_anything_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    lines = [f'{{"t_ms":{k},"input_tokens":{60_000 if k == 7 else 10},"output_tokens":2}}' for k in range(10)]
    trace = trace_of(tmp_path, *lines)
    words = ["simulate", "-w", trace, "-p", "random", "--resume", str(runs), "--workers", "1"]
    small = call(*words, "--profile", "a100-80g-27b-bf16", "--instances", "1,2")
    assert small.exit_code == 1
    assert "1 of 10 requests fit no instance: the longest has 60,002 tokens" in small.stderr
    assert runs.read_bytes() == b""
    mixed = call(*words, "--profile", "a100-80g-27b-bf16", "--profile", "h100-8b:1", "--instances", "2")
    assert mixed.exit_code == 0, mixed.output
    said = " ".join(mixed.stdout.split())
    assert "1 of 10 requests are longer than the 42,000 tokens that a100-80g-27b-bf16 holds" in said
    without = call(*words, "--profile", "a100-80g-27b-bf16", "--instances", "1", "--requests", "7", "--json")
    assert without.exit_code == 0, without.output
    assert json.loads(without.stdout)["calls"] == 7


def test_each_seed_of_what_is_drawn_has_to_fit_before_anything_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    drawn = "generate:poisson,rate=1,seconds=5,prompt=25000,prompt_cv=0.3"
    words = ["simulate", "-w", drawn, "-p", "random", "--profile", "a100-80g-27b-bf16", "--instances", "2"]
    assert call(*words, "--workers", "1").exit_code == 0, "seed 0 alone fits"
    made = call(*words, "--workers", "1", "--seeds", "30", "--resume", str(runs))
    assert made.exit_code == 1
    assert "fit no instance" in made.stderr
    assert runs.read_bytes() == b""


def test_a_window_of_a_trace_is_said_in_the_json(tmp_path: Path) -> None:
    lines = [f'{{"t_ms":{k * 100},"input_tokens":10,"output_tokens":2}}' for k in range(100)]
    made = call(
        "simulate", "-w", trace_of(tmp_path, *lines), "-p", "random", "--window", "2:5", "--requests", "20", "--json"
    )
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout)
    assert (document["window_s"], document["requests"], document["calls"]) == ([2.0, 5.0], 20, 20)
    assert "20 of its 100 requests, from 2 s to 5 s" in document["notes"]
    assert document["policies"]["random"]["outcomes"] == {"done": 20}


@pytest.mark.parametrize(("more", "interval_s"), [([], 0.05), (["--set", "scrape_interval_s=2"], 2.0)])
def test_a_policy_reads_metrics_as_often_as_its_own_system(more: list[str], interval_s: float) -> None:
    words = ["simulate", "-w", "generate:poisson,rate=5,seconds=3", "-p", "equal-cost,llm-d-blend,llumnix+admission"]
    made = call(*words, "--workers", "1", "--json", *more)
    assert json.loads(made.stdout)["scrape_interval_s"] == {
        "equal-cost": 2.0 if more else 1.0, "llm-d-blend": interval_s, "llumnix+admission": interval_s,
    }  # fmt: skip
