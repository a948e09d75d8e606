"""A workload over real sockets to an emulated engine, beside the simulator."""

import asyncio
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import uvloop

from isochrone.cli import validate_engine
from isochrone.cli.live import measure
from isochrone.emulator.instance import Character
from isochrone.emulator.server import Emulator, Place
from isochrone.nouns.settings import Settings
from isochrone.simulator.belief.alone import Served
from isochrone.simulator.belief.finding import Data, Finding
from isochrone.simulator.belief.realtime import simulated
from isochrone.simulator.fleet import Fleet, Member
from isochrone.simulator.plan import Plan
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.profiles import PROFILES
from isochrone.twin.steptime import StepTime

PROFILE = dataclasses.replace(PROFILES["h100-8b"], step=StepTime(0.02, 0.01, 5e-5, 0.0, 0.0, 0.0))
"""20 ms a step, 60 ms for a prompt of 1,000 tokens: far more than a socket takes."""
QUICK = dataclasses.replace(PROFILE, step=StepTime(2e-3, 1e-3, 1e-5, 0.0, 0.0, 0.0))
TRIES = 5


def test_an_emulated_engine_takes_as_long_as_the_simulator_says() -> None:
    shared = tuple(range(50))
    calls = [Call(k * 80_000_000, 1000, 12, ids=shared if k % 2 else ()) for k in range(8)]
    workload = Workload("eight", calls)

    async def measured() -> Served:
        async with Emulator([Character(PROFILE, "tiny", 1.0, mean_output=None)], Place(port=0)) as emulator:
            return await measure(emulator.urls[0], workload, "tiny", lag_s_max=1.0)

    ours = simulated(Plan(Settings(policy="round-robin"), Fleet((Member("one", PROFILE),))), workload)
    assert ours.ttft_s[1] > 0.05, "nothing is shared with the first prompt"
    assert ours.ttft_s[3] < ours.ttft_s[2], "the third odd one finds the shared blocks"
    # A busy machine delays, never hastens: the best of some tries, and medians.
    tries = [uvloop.run(measured())]
    while len(tries) < TRIES and not near(tries[-1], ours):
        tries.append(uvloop.run(measured()))
    assert near(tries[-1], ours), [np.median(one.ttft_s / ours.ttft_s) for one in tries]


def near(theirs: Served, ours: Served) -> bool:
    ttft, e2e = np.median(theirs.ttft_s / ours.ttft_s), np.median(theirs.e2e_s / ours.e2e_s)
    return bool(abs(ttft - 1) < 0.25 and abs(e2e - 1) < 0.15)


def test_the_check_of_an_engine_from_lone_calls_to_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How right it is on a machine that tests share is not asked."""

    async def patient(url: str, workload: Workload, model: str, salt: str, _: float) -> Served:
        return await measure(url, workload, model, salt, lag_s_max=10.0)

    async def found() -> Finding:
        async with Emulator([Character(QUICK, "tiny", 1.0, mean_output=None)], Place(port=0)) as emulator:
            return await asyncio.to_thread(validate_engine.run, Data(tmp_path), emulator.urls[0])

    monkeypatch.setattr(validate_engine, "measure", patient)
    for name, small in (("LONE_PROMPTS", (32, 256)), ("LONE_TIMES", 1), ("TOGETHER_TIMES", 1), ("LOAD_S", 1.0),
                        ("CALLS_MIN", 15), ("CALLS_MAX", 15)):  # fmt: skip
        monkeypatch.setattr(validate_engine, name, small)
    finding = uvloop.run(found())
    assert len(finding.rows) == 12, finding.headline
    assert all(row.published and row.ours for row in finding.rows)
    assert "of 12 figures hold" in finding.headline
    assert any(note.startswith("fitted: floor") for note in finding.notes)
