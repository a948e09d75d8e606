"""What `isochrone up` prints, for people and for programs; and the ports that it hands out."""

import dataclasses
import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from isochrone.cli.up import Wanted, as_json, as_text, choose_ports, command, plan, programs, split
from isochrone.gateway.supervise import News

LOG = Path("logs/engine-1.log")


def wanted(port: int = 0, engine_port: int = 0) -> Wanted:
    return Wanted(
        "emulated", "m", "m", 2, port, 0, "random", engine_port, ("--speed", "2"), ("--no-hold",), None, 1, LOG
    )


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("started", "starting (log: logs/engine-1.log)"),
        ("ready", "ready after 28.1 s: http://127.0.0.1:9001"),
        ("slow", "not ready after 28 s"),
        ("exited", "ended with status -9"),
        ("restarting", "starts again in 28 s"),
        ("given_up", "given up"),
        ("stopping", "stopping"),
        ("killed", "killed"),
        ("stopped", "stopped after 28.1 s"),
    ],
)
def test_every_event_has_its_words(event: str, said: str) -> None:
    news = News("engine-1", event, "http://127.0.0.1:9001", pid=7, seconds=28.14, code=-9, last_lines=("no memory",))
    text = as_text(news, LOG)
    assert "engine-1" in text
    assert said in text
    assert text.splitlines()[-1].endswith("no memory")


def test_a_line_for_programs_leaves_out_what_is_not_known() -> None:
    fields = json.loads(as_json(News("engine-1", "exited", "http://h:1", code=0), LOG))
    assert fields.pop("at").endswith("+00:00")
    assert fields == {
        "name": "engine-1", "event": "exited", "url": "http://h:1", "code": 0, "log": "logs/engine-1.log",
    }  # fmt: skip


def test_ports_are_those_asked_for_else_free_ones_and_never_shared() -> None:
    ports = choose_ports(wanted(port=8080, engine_port=9001))
    assert (ports.gateway, ports.engines) == (8080, (9001, 9002))
    free = choose_ports(wanted())
    assert len({free.gateway, free.admin, *free.engines}) == 4
    assert json.loads(plan(wanted(), free, as_lines=True))["engines"]["engine-2"].endswith(f":{free.engines[1]}")


def test_the_gateway_is_told_of_every_engine_and_goes_first() -> None:
    gateway, *engines = programs(wanted(), choose_ports(wanted()))
    assert gateway.argv.count("--instance") == 2
    assert all(engine.url in gateway.argv for engine in engines)
    assert gateway.argv[-1] == "--no-hold"
    assert gateway.stage < min(engine.stage for engine in engines)


def test_arguments_are_quoted_as_in_a_shell() -> None:
    assert split(["--a 1", "--b='x y'"]) == ("--a", "1", "--b=x y")


def test_a_wrong_policy_or_folder_starts_nothing() -> None:
    misspelt = CliRunner().invoke(command, ["--engine", "emulated", "--policy", "equalcost"])
    assert misspelt.exit_code == 2
    assert "did you mean 'equal-cost'?" in misspelt.output
    missing = CliRunner().invoke(command, ["--engine", "vllm", "--model", "/no/such/model"])
    assert missing.exit_code == 2
    assert "/no/such/model: there is no such folder" in missing.output


def test_a_policy_that_is_not_named_is_left_to_the_gateway() -> None:
    asked = wanted()
    gateway, *_ = programs(asked, choose_ports(asked))
    assert gateway.argv[gateway.argv.index("--policy") + 1] == "random"
    silent = dataclasses.replace(asked, policy=None)
    gateway, *_ = programs(silent, choose_ports(silent))
    assert "--policy" not in gateway.argv


def test_a_port_that_is_taken_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = CliRunner().invoke(command, ["--engine", "emulated", "--port", str(port), "--admin-port", "0"])
    assert result.exit_code == 1
    assert f"port {port}: Address already in use" in result.output
