"""The access log: what a line says, that nobody can forge one, and what happens when it cannot be written."""

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from isochrone.gateway.accesslog import AccessLog
from isochrone.nouns.decision import Decision, Try
from isochrone.nouns.instant import SECOND


def decision(**changes: object) -> Decision:
    values: dict[str, object] = {
        "request": "r-1",
        "model": "m",
        "path": "/v1/chat/completions",
        "tenant": "anonymous",
        "key": "key-1",
        "route": "chat",
        "stream": True,
        "policy": "equal-cost",
        "arrived_at": 5 * SECOND,
        "prompt_tokens_estimate": 90,
        "queue_wait_s": 0.25,
        "tries": [Try("a", 5 * SECOND), Try("b", 6 * SECOND)],
        "first_token_at": 6 * SECOND,
        "ended_at": 8 * SECOND,
        "outcome": "done",
        "status": 200,
        "prompt_tokens": 100,
        "output_tokens": 20,
        "cached_tokens": 40,
    }
    return Decision(**{**values, **changes})  # type: ignore[arg-type]


async def written(path: Path, *decisions: Decision) -> list[dict[str, object]]:
    access_log = AccessLog(str(path))
    access_log.start()
    for one in decisions:
        access_log.record(one)
    await access_log.close()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_line_tells_the_whole_story(tmp_path: Path) -> None:
    (line,) = asyncio.run(written(tmp_path / "log", decision()))
    time = line.pop("time")
    assert isinstance(time, str)
    assert time.endswith("Z")
    assert line == {
        "id": "r-1",
        "tenant": "anonymous",
        "key": "key-1",
        "model": "m",
        "path": "/v1/chat/completions",
        "route": "chat",
        "stream": True,
        "instance": "b",
        "attempts": 2,
        "queue_s": 0.25,
        "ttft_s": 1.0,
        "e2e_s": 3.0,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "output_tokens": 20,
        "outcome": "done",
        "status": 200,
        "reason": "",
    }


def test_whole_answers_have_no_ttft_and_refusals_no_instance(tmp_path: Path) -> None:
    whole, refused = asyncio.run(
        written(tmp_path / "log", decision(stream=False), decision(tries=[], first_token_at=None, outcome="refused"))
    )
    assert whole["ttft_s"] is None
    assert (refused["instance"], refused["attempts"], refused["ttft_s"]) == (None, 0, None)


def test_no_line_can_be_forged(tmp_path: Path) -> None:
    evil = 'x"}\n{"id":"forged"}\r\n\x00\x1b[2J\u2028'
    (line,) = asyncio.run(written(tmp_path / "log", decision(model=evil, tenant=evil)))
    assert line["model"] == evil
    assert (tmp_path / "log").read_bytes().count(b"\n") == 1


def test_long_names_are_cut(tmp_path: Path) -> None:
    (line,) = asyncio.run(written(tmp_path / "log", decision(model="m" * 10_000)))
    assert len(str(line["model"])) == 256


def test_lines_over_the_limit_are_counted_and_left_out() -> None:
    access_log = AccessLog("unused", lines_max=3)
    for _ in range(5):
        access_log.record(decision())
    assert access_log.left_out == 2


def test_a_full_disk_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> AccessLog:
        access_log = AccessLog("/dev/full")
        access_log.start()
        for _ in range(3):
            access_log.record(decision())
            await access_log.flush()
        await access_log.close()
        return access_log

    access_log = asyncio.run(run())
    assert (access_log.left_out, access_log.written) == (3, 0)
    assert len(caplog.records) == 1, "one warning for one trouble"


def test_rotation_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def run() -> None:
        access_log = AccessLog(str(path))
        access_log.start()
        access_log.record(decision(request="old"))
        await access_log.flush()
        path.rename(tmp_path / "log.1")
        access_log.record(decision(request="new"))
        await access_log.close()

    asyncio.run(run())
    assert b'"old"' in (tmp_path / "log.1").read_bytes()
    assert b'"new"' in path.read_bytes()


def test_a_target_that_cannot_be_opened_is_told_at_the_start(tmp_path: Path) -> None:
    async def run() -> None:
        AccessLog(str(tmp_path / "no" / "log")).start()

    with pytest.raises(FileNotFoundError):
        asyncio.run(run())


def test_a_pipe_that_nobody_reads_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The writing thread hangs; lines are left out at the limit, and closing does not wait for ever."""
    monkeypatch.setattr("isochrone.gateway.accesslog.CLOSE_S_MAX", 0.05)
    reading, writing = os.pipe()

    class Pipe:
        def fileno(self) -> int:
            return writing

    monkeypatch.setattr("sys.stdout", Pipe())

    async def run() -> AccessLog:
        access_log = AccessLog("-", lines_max=1000)
        access_log.start()
        for _ in range(3):
            for _ in range(900):
                access_log.record(decision())
            access_log._hand_over()
        await access_log.close()
        return access_log

    access_log = asyncio.run(run())
    assert access_log.left_out > 0
    assert "takes no lines" in caplog.text
    os.close(reading)  # the thread gets an error, and ends
    for thread in threading.enumerate():
        if thread.name == "access log":
            thread.join(5.0)
    os.close(writing)
