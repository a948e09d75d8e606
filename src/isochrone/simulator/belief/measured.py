"""What per-request latencies of a real engine say about its steps.

Where every request's arrival, scheduling, first and last token are known, so is at each moment who decoded, with how
much context, and whose prompts were prefilled. A request that decoded n tokens saw n steps; their mean duration is its
mean gap, and the sums of batch, context and prefilled tokens over them are known. That makes it one row of a linear fit
of step times, with no simulation in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isochrone.simulator.belief.stepfit import Steps

POINTS = 200
"""Moments in a request's decoding at which batch and context are looked at."""


@dataclass(frozen=True, slots=True)
class Run:
    """Requests of one run as columns, in order of arrival; seconds from the run's start."""

    prompt: np.ndarray
    output: np.ndarray
    at: np.ndarray
    scheduled: np.ndarray
    first: np.ndarray
    last: np.ndarray

    def __len__(self) -> int:
        return len(self.at)

    @property
    def ttft(self) -> np.ndarray:
        seconds: np.ndarray = self.first - self.at
        return seconds

    @property
    def e2e(self) -> np.ndarray:
        seconds: np.ndarray = self.last - self.at
        return seconds


def steps_seen(run: Run, which: Sequence[int]) -> Steps:
    """A row for each of the requests: the mean of the steps in which it decoded."""
    weights, tokens, kv_read, pairs, seconds = [], [], [], [], []
    for one in which:
        gaps = int(run.output[one]) - 1
        if gaps < 1:
            continue
        batch, context = _while_decoding(run, one)
        others = _came_while_decoding(run, one)
        prefilled = run.prompt[others]
        # Prompts whose first tokens came at the same moment were prefilled in the same step.
        carrying = len(np.unique(run.first[others].round(3)))
        share = min(1.0, carrying / gaps)
        weights.append([1 - share, share])
        tokens.append([batch, batch + (float(prefilled.sum()) / carrying if carrying else 0.0)])
        kv_read.append(context)
        pairs.append(float((prefilled.astype(float) ** 2).sum()) / 2 / gaps)
        seconds.append((run.last[one] - run.first[one]) / gaps)
    return Steps(np.array(weights), np.array(tokens), np.array(kv_read), np.array(pairs), np.array(seconds))


def prompts_seen(run: Run, which: Sequence[int]) -> np.ndarray:
    """For each of the requests, all of which have gaps: others' prompts that ended in one of its steps, on average."""
    return np.array([_came_while_decoding(run, one).sum() / (int(run.output[one]) - 1) for one in which])


def _came_while_decoding(run: Run, one: int) -> np.ndarray:
    """Requests whose first token came after its first and not after its last."""
    came: np.ndarray = (run.first > run.first[one]) & (run.first <= run.last[one])
    return came


def _while_decoding(run: Run, one: int) -> tuple[float, float]:
    """Mean batch and mean context read, over the time in which the request decoded."""
    moments = np.linspace(run.first[one], run.last[one], POINTS, endpoint=False)[:, None]
    decoding = (run.first[None, :] <= moments) & (run.last[None, :] > moments)
    share = np.clip((moments - run.first) / np.maximum(run.last - run.first, 1e-9), 0.0, 1.0)
    context = (decoding * (run.prompt + share * run.output)).sum(axis=1)
    return float(decoding.sum(axis=1).mean()), float(context.mean())
