"""`isochrone emulate`: options, and what it says about wrong ones."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from isochrone.cli.emulate import command, parse_slow
from isochrone.twin.profiles import PROFILES


def test_profiles_are_listed_for_people_and_machines() -> None:
    runner = CliRunner()
    shown = runner.invoke(command, ["--list-profiles"])
    as_json = runner.invoke(command, ["--list-profiles", "--json"])
    assert shown.exit_code == as_json.exit_code == 0
    assert all(name in shown.output for name in PROFILES)
    assert [one["name"] for one in json.loads(as_json.output)] == list(PROFILES)


def test_slow_names_an_instance_and_a_factor() -> None:
    assert parse_slow(["0:2.5", "3:0.5"], count=4) == {0: 2.5, 3: 0.5}


@pytest.mark.parametrize("value", ["x", "1", "4:2", "-1:2", "0:0", "0:-1", "0:nan", ":2"])
def test_a_wrong_slow_is_named(value: str) -> None:
    result = CliRunner().invoke(command, ["--count", "4", "--slow", value])
    assert result.exit_code == 2
    assert "--slow" in result.output
    assert repr(value) in result.output


def test_ports_have_an_end() -> None:
    result = CliRunner().invoke(command, ["--port", "65530", "--count", "10"])
    assert result.exit_code == 2
    assert "65535" in result.output


def test_json_alone_means_nothing() -> None:
    result = CliRunner().invoke(command, ["--json"])
    assert result.exit_code == 2
    assert "--list-profiles" in result.output


def test_a_ready_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no" / "ready.json"
    result = CliRunner().invoke(command, ["--port", "0", "--ready-file", str(path)])
    assert result.exit_code == 1
    assert f"--ready-file {path}: No such file or directory" in result.output
