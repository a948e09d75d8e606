"""Fit the twin's step-time form to measured steps.

    t = max(floor, a + b*T) + k*K + q*A

with T tokens in the batch, K KV tokens that decoding rows read, A attention pairs of prefilled tokens. The twin's
constant o cannot be told from floor and a by measuring whole steps: it is inside both here.

The form is linear in its five parameters once it is known which steps lie on the floor, so the fit alternates: sort the
steps by the present parameters, solve non-negative least squares on the relative error, repeat until none changes
sides. A row may be the mean of two kinds of steps (of those of a server, some carry a prompt and some do not): each
kind has a weight and its own T.

Measured on a machine that does other things too, some rows are slower than the engine is. `fit_steady` gives rows that
lie far off less say, and finds what a request takes beside its steps as further parameters.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from isochrone.twin.steptime import StepTime

KNEES_TOKENS = (0.5, 16, 64, 128, 256, 384, 512)
"""Where the floor may end at first; the best fit from all of them is taken. 0.5: no step lies on the floor."""
TURNS_MAX = 50
"""Rounds of one fit."""
FAR = 0.05
"""Relative error from which on a row has less say in `fit_steady`: its squared error counts as if it grew linearly."""
STEADY_TURNS = 8
"""Rounds of weighing rows by how far off they lie."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Measured steps as columns of equal length."""

    weights: np.ndarray
    """(rows, 2): shares of the two kinds; they sum to 1."""
    tokens: np.ndarray
    """(rows, 2): T of each kind."""
    kv_read: np.ndarray
    """K, mean over both."""
    pairs: np.ndarray
    """A, mean over both."""
    seconds: np.ndarray

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, which: np.ndarray) -> "Steps":
        return Steps(
            self.weights[which], self.tokens[which], self.kv_read[which], self.pairs[which], self.seconds[which]
        )


def steps_of(rows: list[tuple[float, float, float, float]]) -> Steps:
    """Steps of one kind each: (T, K, A, seconds)."""
    tokens, kv_read, pairs, seconds = np.array(rows, dtype=float).T
    both = np.stack([tokens, tokens], axis=1)
    return Steps(np.tile([1.0, 0.0], (len(rows), 1)), both, kv_read, pairs, seconds)


def predict(theta: np.ndarray, steps: Steps) -> np.ndarray:
    """Seconds of each step."""
    floor, a, b, k, q = theta
    matrix = (steps.weights * np.maximum(floor, a + b * steps.tokens)).sum(axis=1)
    seconds: np.ndarray = matrix + k * steps.kv_read + q * steps.pairs
    return seconds


def fit(steps: Steps) -> np.ndarray:
    """(floor, a, b, k, q) with the least squared relative error."""
    nothing = np.empty((len(steps), 0))
    return _fit(steps, nothing)


def fit_steady(steps: Steps, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(floor, a, b, k, q), and the seconds of each thing that rows hold beside a step: as often as `beside` (rows,
    things) says.

    By absolute errors where they are large (Huber's loss, by weighing anew), so that a third of the rows may be slow.
    """
    found = _fit(steps, beside)
    for _ in range(STEADY_TURNS):
        off = np.abs(seconds_of(found[:5], found[5:], steps, beside) / steps.seconds - 1)
        found = _from_sides(steps, beside, FAR / np.maximum(off, FAR), _above_floor(found, steps))
    return found[:5], found[5:]


def seconds_of(theta: np.ndarray, each_s: np.ndarray, steps: Steps, beside: np.ndarray) -> np.ndarray:
    """Seconds of each row: its step, and what it holds beside it."""
    seconds: np.ndarray = predict(theta, steps) + beside @ each_s
    return seconds


def _fit(steps: Steps, beside: np.ndarray) -> np.ndarray:
    """The five parameters, and one for each column of `beside`."""
    best, best_error = np.zeros(5 + beside.shape[1]), float("inf")
    for knee_tokens in KNEES_TOKENS:
        found = _from_sides(steps, beside, np.ones(len(steps)), steps.tokens > knee_tokens)
        error = float(np.sum((seconds_of(found[:5], found[5:], steps, beside) / steps.seconds - 1) ** 2))
        if error < best_error:
            best, best_error = found, error
    return best


def _above_floor(theta: np.ndarray, steps: Steps) -> np.ndarray:
    above: np.ndarray = theta[1] + theta[2] * steps.tokens > theta[0]
    return above


def _from_sides(steps: Steps, beside: np.ndarray, weights: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """The fit that begins with these steps above the floor."""
    theta = np.zeros(5 + beside.shape[1])
    say = np.sqrt(weights)
    for _ in range(TURNS_MAX):
        shares = steps.weights
        matrix = np.column_stack(
            [
                (shares * ~linear).sum(axis=1),
                (shares * linear).sum(axis=1),
                (shares * linear * steps.tokens).sum(axis=1),
                steps.kv_read,
                steps.pairs,
                beside,
            ]
        )
        theta = nonnegative_least_squares(matrix * (say / steps.seconds)[:, None], say)
        moved = _above_floor(theta, steps)
        if (moved == linear).all():
            break
        linear = moved
    return theta


def nonnegative_least_squares(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Best x >= 0 of |matrix x - wanted|. At most seven columns: trying every set of positive ones is exact."""
    width = matrix.shape[1]
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = matrix / scale
    best, best_error = np.zeros(width), float(wanted @ wanted)
    for size in range(1, width + 1):
        for chosen in itertools.combinations(range(width), size):
            columns = list(chosen)
            solution = np.linalg.lstsq(scaled[:, columns], wanted, rcond=None)[0]
            residual = scaled[:, columns] @ solution - wanted
            if (solution >= 0).all() and residual @ residual < best_error:
                best, best_error = np.zeros(width), float(residual @ residual)
                best[columns] = solution
    found: np.ndarray = best / scale
    return found


def as_step_time(theta: np.ndarray) -> StepTime:
    """For a twin. The constant per step is inside floor and a."""
    floor, a, b, k, q = (float(value) for value in theta)
    return StepTime(floor_s=floor, base_s=a, token_s=b, kv_token_s=k, pair_s=q, overhead_s=0.0)
