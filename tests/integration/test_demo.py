"""`isochrone demo` on real processes: a short run, and what Ctrl-C leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

MARK = "ISOCHRONE_DEMO_TEST"
SHORT = ("--rounds", "1", "--seconds", "1", "--warm", "0", "--rate-scale", "0.4", "--policies", "least-request")


@pytest.fixture
def marked() -> Iterator[dict[str, str]]:
    """An environment by which every process of the demo can be found; none may be left."""
    name = uuid.uuid4().hex
    yield {**os.environ, MARK: name}
    left = processes(name)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def processes(name: str) -> list[int]:
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={name}".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
        except OSError:
            continue
    return found


def demo(*options: str) -> list[str]:
    return [sys.executable, "-m", "isochrone.cli.main", "demo", *options]


def test_a_short_demo_prints_one_json_object(marked: dict[str, str]) -> None:
    done = subprocess.run(demo(*SHORT, "--json"), env=marked, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 3), done.stderr
    if done.returncode == 3:
        assert "too busy to judge" in done.stderr
        return
    row = json.loads(done.stdout)["policies"]["least-request"]
    assert row["served_ratio"] == 1.0
    assert row["ttft_p99_s"] > 0
    assert sum(row["requests_per_instance"].values()) == row["requests"]
    assert "1/1 round 1 least-request" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_behind(marked: dict[str, str], number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)  # ignored, as in a shell's background job, is inherited
    running = subprocess.Popen(demo("--rounds", "1"), env=marked, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    signal.signal(number, before)
    deadline = time.monotonic() + 30
    while len(processes(marked[MARK])) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)  # another process's start: there is no event to wait for
    running.send_signal(number)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 130, errors
    assert b"stopped" in errors
