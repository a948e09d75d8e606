"""A run that a known twin has served: its steps are found again, and it is predicted."""

import gzip
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from isochrone.simulator.belief import vllm_requests
from isochrone.simulator.belief.alone import Ask, serve
from isochrone.simulator.belief.finding import Data, Verdict
from isochrone.simulator.belief.measured import Run, steps_seen
from isochrone.simulator.belief.stepfit import fit, predict
from isochrone.twin.schedule import Limits
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=9e-3, base_s=6e-3, token_s=4e-5, kv_token_s=7e-8, pair_s=0.0, overhead_s=0.0)
LIMITS = Limits(24, 2048, 16, 60_000)


@pytest.fixture
def asks() -> list[Ask]:
    chance = random.Random(5)
    at, made = 0.0, []
    for _ in range(120):
        at += chance.expovariate(12.0)
        made.append(Ask(at, chance.randint(50, 1500), chance.randint(100, 400)))
    return made


def as_run(asks: list[Ask]) -> Run:
    served = serve(LIMITS, STEP, asks)
    at = np.array([ask.at_s for ask in asks])
    prompt = np.array([ask.prompt_tokens for ask in asks])
    first = at + served.ttft_s
    return Run(prompt, served.output, at, first - 1e-3, first, at + served.e2e_s)


def test_alone_on_the_twin() -> None:
    served = serve(LIMITS, STEP, [Ask(0.0, 1000, 1), Ask(9.0, 1000, 11)])
    prefill_s = STEP.seconds(1000, 0, 1000 * 500.0)
    assert served.ttft_s == pytest.approx([prefill_s, prefill_s], rel=1e-6)
    assert served.e2e_s[1] - served.ttft_s[1] == pytest.approx(10 * 9e-3 + 7e-8 * sum(range(1001, 1011)), rel=1e-6)
    assert np.isnan(served.tpot_s[0])


def test_steps_are_found_in_latencies(asks: list[Ask]) -> None:
    run = as_run(asks)
    theta = fit(steps_seen(run, range(0, len(run), 2)))
    unseen = steps_seen(run, range(1, len(run), 2))
    assert np.median(np.abs(predict(theta, unseen) / unseen.seconds - 1)) < 0.03


def test_published_settings() -> None:
    usual, small, ranks = (vllm_requests.limits(name) for name in ("any", *vllm_requests.SETTINGS))
    assert (usual.max_num_seqs, usual.chunk_tokens) == (128, 2048)
    assert (small.max_num_seqs, small.kv_blocks) == (256, 2588)
    assert (ranks.max_num_seqs, ranks.chunk_tokens) == (256, 4096)


def write(folder: Path, run: Run, stretch: float) -> None:
    with gzip.open(folder / vllm_requests.FILE, "wb") as file:
        for number in range(len(run)):
            ttft, e2e = float(run.ttft[number]), float(run.e2e[number])
            scale = stretch if number % 2 else 1.0
            queued = float(run.scheduled[number] - run.at[number])
            line = {
                "run": "made",
                "t_ms": float(run.at[number]) * 1e3,
                "input_tokens": int(run.prompt[number]),
                "output_tokens": int(run.output[number]),
                "queue_ms": queued * 1e3,
                "ttft_ms": ttft * scale * 1e3,
                "e2e_ms": e2e * scale * 1e3,
            }
            file.write(msgspec.json.encode(line) + b"\n")


def test_a_run_is_predicted_and_a_false_one_is_not(
    asks: list[Ask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vllm_requests.SETTINGS, "made", vllm_requests.Settings(max_num_seqs=24))
    run = as_run(asks)
    write(tmp_path, run, 1.0)
    assert vllm_requests.run(Data(tmp_path)).verdict is Verdict.HOLDS
    write(tmp_path, run, 3.0)
    assert vllm_requests.run(Data(tmp_path)).verdict is Verdict.MISSES


def test_published_runs(data: Data) -> None:
    runs = vllm_requests.read_runs(data.path(vllm_requests.FILE))
    assert [len(run) for run in runs.values()] == [300] * 4
    odd = steps_seen(runs[vllm_requests.CARRIED_FROM], range(0, 300, 2))
    even = steps_seen(runs[vllm_requests.CARRIED_FROM], range(1, 300, 2))
    assert np.median(np.abs(predict(fit(odd), even) / even.seconds - 1)) < 0.01
