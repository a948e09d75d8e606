"""`isochrone simulate` and `isochrone replay` from the command line."""

import json
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

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
    assert "goodput" in table.stdout
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
        "--profile", "a100-8b:1", "--slow", "0:2", "-p", "equal-cost,lmetric+queue", "--workers", "2", "--json",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert list(json.loads(made.stdout)["policies"]) == ["equal-cost", "lmetric+queue"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-w", "generate:poison"], "did you mean 'poisson'?"),
        (["-w", "generate:poisson", "-p", "equal-cots"], "did you mean 'equal-cost'?"),
        (["-w", "generate:poisson", "--profile", "h100-8"], "did you mean 'h100-8b'?"),
        (["-w", "generate:poisson", "--profile", "h100-8b:x"], "is not NAME:COUNT"),
        (["-w", "generate:poisson", "--without", "impose"], "did you mean 'imposed'?"),
        (["-w", "generate:poisson", "--set", "hold_slak_s=1"], "did you mean 'hold_slack_s'?"),
        (["-w", "generate:poisson", "--set", "hold_slack_s=x"], "Expected `float`"),
        (["-w", "generate:poisson", "--rate-scale", "0"], "expected numbers above 0"),
        (["-w", "generate:prefix,shared=500000,rate=1"], "fit no instance"),
        (["-w", "/dev/nowhere.jsonl"], "there is no file '/dev/nowhere.jsonl'; drawn ones begin with 'generate:'"),
        (["-w", "sharegtp"], "did you mean 'generate:sharegpt'?"),
    ],
)
def test_wrong_words_are_explained(words: list[str], said: str) -> None:
    made = call("simulate", *words)
    assert made.exit_code != 0
    assert said in " ".join(made.output.split()), made.output


def test_replay_shows_a_seed_again() -> None:
    first, second = call("replay", "--seed", "5", "--events"), call("replay", "--seed", "5", "--events")
    assert first.exit_code == 0, first.output
    assert first.output == second.output
    assert "Arrived" in first.output
    assert "all invariants hold" in first.output


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
