"""Clusters of other shapes from the command line."""

import json

import pytest
from click.testing import CliRunner, Result

from isochrone.cli.main import main


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["simulate", "-w", "generate:poisson,rate=10,seconds=5", *words])


def document(*words: str) -> dict[str, object]:
    made = call(*words, "-p", "equal-cost", "--workers", "1", "--json")
    assert made.exit_code == 0, made.output
    found: dict[str, object] = json.loads(made.stdout)
    return found


def test_gateways() -> None:
    made = document("--instances", "2", "--gateways", "3", "--sticky")
    assert (made["gateways"], made["sticky"]) == (3, True)
    assert made["notes"] == ["3 gateways, a session keeps to one; they know of each other only by their scrapes"]
    assert made["policies"]["equal-cost"]["forecast_e2e_error"] > 0  # type: ignore[index]


def test_ranks_and_experts() -> None:
    made = document("--instances", "4", "--ranks", "2", "--experts", "64,top=6,devices=4")
    assert made["ranks"] == 2
    assert made["experts"] == {
        "count": 64, "top": 6, "devices": 4, "share": 0.55, "least": 1.01, "most": 1.2, "seed": 0
    }  # fmt: skip
    notes = made["notes"]
    assert isinstance(notes, list)
    assert any("ranks of one engine" in note for note in notes)
    assert any("uneven load of experts" in note for note in notes)


def test_pools_say_how_many_instances_there_are() -> None:
    made = document("--pd", "1:2", "--link-gbps", "100")
    assert (made["instances"], made["pd"], made["link_gbps"]) == (3, [1, 2], 100.0)
    assert any("links of 100 Gb/s" in note for note in made["notes"])  # type: ignore[attr-defined]
    plain = document("--instances", "3")
    assert (plain["pd"], plain["link_gbps"], plain["experts"], plain["notes"]) == (None, None, None, [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pd", "3"], "is not P:D"),
        (["--pd", "0:3"], "is not P:D"),
        (["--pd", "1:2", "--instances", "4"], "are not the 4 instances"),
        (["--ranks", "3", "--instances", "4"], "no whole number of engines"),
        (["--experts", "devises=8"], "did you mean 'devices'"),
        (["--gateways", "0"], "1<=x<=256"),
        (["--pd", "1:1", "--link-gbps", "0"], "x>0"),
    ],
)
def test_wrong_words_are_explained(words: list[str], said: str) -> None:
    made = call(*words)
    assert made.exit_code != 0
    assert said in " ".join(made.output.split())
