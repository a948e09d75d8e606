"""The warm-start file: kept over restarts, never half written, ignored when broken."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from isochrone.gateway.warmstart import WarmStart


class Learner:
    """Learns what it is told."""

    def __init__(self, known: dict[str, object] | None = None) -> None:
        self.known = known or {}

    def learned(self) -> dict[str, object]:
        return self.known

    def restore(self, learned: Mapping[str, object]) -> None:
        if "broken" in learned:
            raise KeyError("step_times")
        self.known = dict(learned)


def test_what_was_saved_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "warm.json"
    asyncio.run(WarmStart(path, Learner({"lengths": {"chat": [1, 2.5]}})).save())
    fresh = Learner()
    assert WarmStart(path, fresh).load()
    assert fresh.known == {"lengths": {"chat": [1, 2.5]}}
    assert [entry.name for entry in tmp_path.iterdir()] == ["warm.json"]


def test_no_file_is_a_cold_start_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not WarmStart(tmp_path / "warm.json", Learner()).load()
    assert not caplog.records


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"format": 99, "saved_at_unix_s": 0, "learned": {}}',
        b'{"format": 1, "saved_at_unix_s": 0, "learned": {"broken": 1}}',
        b'{"format": 1, "saved_at_unix_s": 0, "learned": 3}',
    ],
)
def test_a_broken_file_is_reported_and_ignored(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "warm.json"
    path.write_bytes(content)
    learner = Learner()
    assert not WarmStart(path, learner).load()
    assert learner.known == {}
    assert "cannot be used" in caplog.text


def test_saved_by_the_clock_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "warm.json"

    async def run() -> None:
        learner = Learner({"n": 1})
        warm_start = WarmStart(path, learner, interval_s=0.001)
        warm_start.start()
        while not path.exists():
            await asyncio.sleep(0.001)
        learner.known = {"n": 2}
        await warm_start.close()

    asyncio.run(run())
    last = Learner()
    WarmStart(path, last).load()
    assert last.known == {"n": 2}


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(WarmStart(tmp_path / "no" / "warm.json", Learner()).save())
    assert "was not saved" in caplog.text


def test_a_folder_that_is_not_there_is_told_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not WarmStart(tmp_path / "warm.json", Learner()).load()
    assert caplog.text == ""
    assert not WarmStart(tmp_path / "no" / "warm.json", Learner()).load()
    assert "no such folder" in caplog.text
