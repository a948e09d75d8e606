"""What calls to a real engine under light load say of it: everything that a twin needs to predict a heavier one.

Seven numbers are fitted together:

    a step                  max(floor, a + b*T) + k*K + q*A         seconds, as in `stepfit.py`
    a request, inside       r: everybody in the batch waits for it (`admitting.py`)
    a request, outside      c: connection, API server, tokenizer; only its own first token is later

Rows of the fit, and what they tell apart: the TTFT of lone calls (c, and b from q by short and long prompts), the mean
gap of lone calls (floor and a), of calls that were sent together (k: four prompts are four times the context of one),
and of calls in a light load (b and r: prompts stand in others' way). What of a prompt's TTFT is c and what is r, only
these last can say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from isochrone.simulator.belief.admitting import AdmittingEngine
from isochrone.simulator.belief.alone import Ask, Served, serve
from isochrone.simulator.belief.measured import Run, prompts_seen, steps_seen
from isochrone.simulator.belief.stepfit import Steps, as_step_time, fit_steady, seconds_of, steps_of
from isochrone.twin.schedule import Limits
from isochrone.twin.steptime import StepTime

GAPS_MIN = 16
"""A call with fewer gaps is no row: their mean says more about how tokens were bundled on their way."""
APART_S = 1000.0
"""Between calls that were not measured at the same time, where they are put into one run."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """An engine, as far as it is known."""

    step: StepTime
    request_s: float
    """r, inside the engine."""
    constant_s: float
    """c, outside."""
    misfit: float
    """Median relative error on the rows that it was fitted to."""
    rows: int

    def predict(self, limits: Limits, asks: Sequence[Ask]) -> Served:
        """Latencies of the calls."""
        served = serve(limits, self.step, asks, partial(AdmittingEngine, request_s=self.request_s))
        return Served(served.ttft_s + self.constant_s, served.e2e_s + self.constant_s, served.output)

    def __str__(self) -> str:
        step = self.step
        return (
            f"floor {step.floor_s * 1e3:.3g} ms, a {step.base_s * 1e3:.3g} ms, b {step.token_s * 1e6:.3g} us a token, "
            f"k {step.kv_token_s * 1e9:.3g} ns a context token, q {step.pair_s * 1e9:.3g} ns a pair; a request "
            f"{self.request_s * 1e3:.3g} ms in the engine and {self.constant_s * 1e3:.3g} ms outside; median error on "
            f"the {self.rows} rows of the calibration itself {self.misfit:.1%}"
        )


def calibrated(lone: Run, together: Run, light: Run) -> Calibrated:
    """From lone calls, calls that were sent together, and a light load."""
    steps, beside = _rows(lone, [lone, together, light])
    theta, (constant_s, request_s) = fit_steady(steps, beside)
    off = np.abs(seconds_of(theta, np.array([constant_s, request_s]), steps, beside) / steps.seconds - 1)
    return Calibrated(as_step_time(theta), float(request_s), float(constant_s), float(np.median(off)), len(steps))


def _rows(lone: Run, runs: Sequence[Run]) -> tuple[Steps, np.ndarray]:
    """The first tokens of lone calls and the mean gaps of all, and (rows, 2) how often each row holds c and r."""
    firsts = steps_of(
        [(prompt, 0.0, prompt * prompt / 2, ttft_s) for prompt, ttft_s in zip(lone.prompt, lone.ttft, strict=True)]
    )
    parts, beside = [firsts], [np.ones((len(firsts), 2))]
    for run in runs:
        which = [one for one in range(len(run)) if run.output[one] > GAPS_MIN and run.last[one] > run.first[one]]
        parts.append(steps_seen(run, which))
        beside.append(np.column_stack([np.zeros(len(which)), prompts_seen(run, which)]))
    names = ("weights", "tokens", "kv_read", "pairs", "seconds")
    joined = Steps(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
    return joined, np.concatenate(beside)


def as_run(asks: Sequence[Ask], served: Served) -> Run:
    """Measured calls as `measured.py` reads them. When each was scheduled is unknown, and not needed for its steps."""
    at = np.array([ask.at_s for ask in asks])
    prompt = np.array([ask.prompt_tokens for ask in asks])
    return Run(prompt, served.output, at, at, at + served.ttft_s, at + served.e2e_s)


def in_turn(runs: Sequence[Run]) -> Run:
    """Runs that had the engine to themselves, as one."""
    columns = []
    for name in ("prompt", "output", "at", "scheduled", "first", "last"):
        moved = 0.0 if name in ("prompt", "output") else APART_S
        columns.append(np.concatenate([getattr(run, name) + number * moved for number, run in enumerate(runs)]))
    return Run(*columns)
