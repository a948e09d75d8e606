"""`isochrone replay`: what a failing seed's command prints."""

import pytest
from click.testing import CliRunner, Result

from isochrone.cli.main import main
from isochrone.simulator import invariants


def replay(*flags: str) -> Result:
    return CliRunner().invoke(main, ["replay", "--seed", "39", *flags])


def test_a_seed_that_holds_says_what_it_stands_for() -> None:
    result = replay()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("settings: ")
    assert sum(line.startswith("instance e") for line in lines) >= 1
    assert "120 calls" in result.output or "20 calls" in result.output
    assert lines[-1].startswith("all invariants hold; ")
    assert result.output == replay().output


def test_the_story_of_one_request() -> None:
    lines = [line for line in replay("--request", "3").output.splitlines() if "request " in line]
    assert "request 3 arrives: " in lines[0]
    assert "request 3 is over: " in lines[-1]
    assert not [line for line in lines if "request 4" in line]


def test_every_event_where_asked() -> None:
    output = replay("--events").output
    for what in ("joins", "heartbeat ok", "scraped, ", "arrives: ", "first token", " tokens", "is over: done"):
        assert what in output


def test_a_broken_invariant_is_told_with_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """With quotas that a request may exceed, the claim that nobody is turned away does not hold."""
    monkeypatch.setattr(invariants, "PLENTY", 5000)
    result = replay()
    assert result.exit_code == 1
    assert "broken: request " in result.output
    assert "a tenant with plenty was turned away" in result.output
