"""The fit finds what it was made from, and groups hold what the file says."""

import csv
from pathlib import Path

import numpy as np
import pytest

from isochrone.simulator.belief import step_times
from isochrone.simulator.belief.finding import Data, NoData, Verdict
from isochrone.simulator.belief.stepfit import as_step_time, fit, predict, steps_of
from isochrone.simulator.belief.steprows import FILE, read_groups

TRUE = np.array([6e-3, 3e-3, 1.5e-5, 5e-8, 1.2e-9])
COLUMNS = [
    *("kind", "gpu", "model", "precision", "tp", "engine", "phase", "batch", "prompt_tokens", "context_tokens"),
    *("output_tokens", "step_ms", "tok_per_s", "ttft_ms", "tpot_ms", "source", "note"),
]


def made_steps(theta: np.ndarray) -> list[tuple[float, float, float, float]]:
    rows = [(tokens, 0.0, tokens * tokens / 2) for tokens in (128, 256, 512, 1024, 4096, 16384)]
    rows += [(batch, batch * context, 0.0) for batch in (1, 8, 64, 256) for context in (512, 4096)]
    return [(*row, float(predict(theta, steps_of([(*row, 1.0)]))[0])) for row in rows]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_fit_finds_the_form_it_was_made_from() -> None:
    steps = steps_of(made_steps(TRUE))
    found = fit(steps)
    assert np.abs(predict(found, steps) / steps.seconds - 1).max() < 1e-6
    assert found == pytest.approx(TRUE, rel=1e-3)


def test_a_twin_takes_as_long_as_the_fit_says() -> None:
    step = as_step_time(TRUE)
    assert step.seconds(2048, 0, 2048**2 / 2) == pytest.approx(3e-3 + 1.5e-5 * 2048 + 1.2e-9 * 2048**2 / 2)
    assert step.seconds(8, 4000, 0.0) == pytest.approx(6e-3 + 5e-8 * 4000)


def test_odd_and_even_rows_are_counted_within_a_phase(tmp_path: Path) -> None:
    rows = [
        {"kind": "measured_step", "gpu": "g", "model": "m", "tp": 1, "phase": phase, "batch": batch,
         "prompt_tokens": 100, "context_tokens": 200, "step_ms": 10 * batch}
        for batch in (1, 2, 4, 64)
        for phase in ("prefill", "decode")
    ]  # fmt: skip
    groups, left_out = read_groups(str(write(tmp_path / FILE, rows)))
    odd, even = next(iter(groups.values())).halves()
    assert left_out == 1, "decode rows of batch 64 are distrusted; prefill rows are not"
    assert sorted(odd.seconds) == pytest.approx([0.01, 0.01, 0.04, 0.04])
    assert sorted(even.seconds) == pytest.approx([0.02, 0.02, 0.64])


def test_a_server_is_a_mean_of_steps_with_and_without_a_prompt(tmp_path: Path) -> None:
    row = {"kind": "measured_serving", "gpu": "g", "model": "m", "tp": 1, "phase": "serving", "batch": 10,
           "prompt_tokens": 1000, "output_tokens": 100, "tpot_ms": 20.0,
           "note": "dp=1.0 moe_tp=1.0 ep=1.0; batch = fixed concurrency"}  # fmt: skip
    groups, _ = read_groups(str(write(tmp_path / FILE, [row])))
    (key,), (group,) = groups.keys(), groups.values()
    steps, _ = group.halves()
    assert key.layout == ""
    assert steps.weights[0] == pytest.approx([0.9, 0.1])
    assert steps.tokens[0] == pytest.approx([10, 1010])
    assert steps.kv_read[0] == pytest.approx(10 * 1050)
    assert steps.pairs[0] == pytest.approx(0.1 * 1000**2 / 2)


def test_made_rows_hold_and_a_wrong_form_misses(tmp_path: Path) -> None:
    def rows(scale: float) -> list[dict[str, object]]:
        made: list[dict[str, object]] = []
        for number, (tokens, kv, _, seconds) in enumerate(made_steps(TRUE)):
            step_ms = 1e3 * seconds * (scale if number % 2 else 1.0)
            about = {"kind": "composed_ops", "gpu": "g", "model": "m", "tp": 1, "step_ms": step_ms}
            if kv:
                made.append({**about, "phase": "decode", "batch": tokens, "context_tokens": kv / tokens})
            else:
                made.append({**about, "phase": "prefill", "batch": 1, "prompt_tokens": tokens})
        return made

    write(tmp_path / FILE, rows(1.0))
    assert step_times.run(Data(tmp_path)).verdict is Verdict.HOLDS
    write(tmp_path / FILE, rows(2.0))
    assert step_times.run(Data(tmp_path)).verdict is Verdict.MISSES


def test_absent_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(NoData, match=FILE):
        step_times.run(Data(tmp_path))


def test_published_rows(data: Data) -> None:
    finding = step_times.run(data)
    assert finding.verdict is Verdict.HOLDS
    assert len(finding.rows) > 100
