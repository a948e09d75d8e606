"""`isochrone up` with emulated engines: it serves, heals and stops in the right order."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from isochrone.cli.main import main
from tests.support.calls import Stream, eventually, get, post
from tests.support.processes import Up, ready_instances

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16, "ignore_eos": True}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    up = Up(["--engine", "emulated", "--served-name", "tiny", "--engine-arg", "--speed 4 --mean-output 0"], tmp_path)
    try:
        for name in ("engine-1", "engine-2", "gateway"):
            up.wait_for(name, "ready")
        eventually(lambda: ready_instances(up) == 2, within_s=20)
        yield up
    finally:
        up.stop()


def test_a_killed_engine_is_not_missed_and_starts_again(up: Up) -> None:
    assert post(up.gateway, CHAT, BODY).status == 200
    os.kill(up.pid("engine-2"), signal.SIGKILL)
    assert [post(up.gateway, CHAT, BODY).status for _ in range(10)] == [200] * 10
    assert up.wait_for("engine-2", "exited")["code"] == -signal.SIGKILL
    up.wait_for("engine-2", "ready", 2)
    # An instance that failed requests proves itself with one, so there has to be some traffic.
    eventually(lambda: post(up.gateway, CHAT, BODY).status == 200 and ready_instances(up) == 2, within_s=20)
    assert post(up.engines["engine-2"], CHAT, BODY).status == 200


def test_stopping_lets_a_running_answer_end_before_the_engines_go(up: Up) -> None:
    with Stream(up.gateway, CHAT, {**BODY, "max_tokens": 400, "stream_options": {"include_usage": True}}) as stream:
        events = stream.events()
        seen = [next(events)]
        up.process.send_signal(signal.SIGINT)
        up.wait_for("gateway", "stopping")
        seen += list(events)
    assert seen[-1] == "[DONE]"
    assert '"completion_tokens":400' in seen[-2].replace(" ", "")
    assert up.process.wait(30) == 0
    told = [(news["name"], news["event"]) for news in up.news if news["event"] in ("stopping", "stopped", "killed")]
    assert told[:2] == [("gateway", "stopping"), ("gateway", "stopped")]
    assert sorted(told[2:]) == [(name, event) for name in ("engine-1", "engine-2") for event in ("stopped", "stopping")]
    with pytest.raises(ConnectionRefusedError):
        get(up.engines["engine-1"], "/health")


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = CliRunner().invoke(main, ["up", "--engine", "vllm"])
    assert (answer.exit_code, "--model" in answer.output) == (2, True)
    monkeypatch.setenv("ISOCHRONE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ISOCHRONE_VLLM_BIN", raising=False)
    answer = CliRunner().invoke(main, ["up", "--engine", "vllm", "--model", "m", "--logs", str(tmp_path)])
    assert (answer.exit_code, "make vllm" in answer.output) == (1, True)
