"""A cap on concurrency from the TPOT target; off unless `cap_ratio` is set (0.6 is a sensible value).

A request with a TPOT target goes to an instance only while a decode step with it and all R that run there takes at
most `cap_ratio` of the target by the step model; the rest is left for prefill in the same steps:

    f * (a + b*(R + 1) + k*(K + n)) <= cap_ratio * TPOT target

It never binds below the batch at which the measured median gap reaches that much (`instances/gaps.py`), and an idle
instance is always eligible. It is a question of late binding: where nothing is held, nothing is capped. Late binding
alone lost no throughput where prompts share prefixes, which is why the cap is off by default.
"""

from collections.abc import Sequence

import numpy as np

from isochrone.scheduling.price import Ask, Row


def allows(ask: Ask, row: Row) -> bool:
    """Whether the cap lets the request go to this instance now. For asks with `step_s_max` above zero."""
    if row.running == 0:
        return True
    step_s = row.rare.full_step_s + row.rare.kv_s * ask.prompt_tokens
    return step_s <= ask.step_s_max or row.running < floor(row, ask.step_s_max)


def floor(row: Row, step_s_max: float) -> int:
    """The batch below which the cap does not bind here; 0 where nothing was measured, for then the model is all."""
    return row.rare.gaps.floor(step_s_max) if row.rare.gaps is not None else 0


def allows_many(tokens: np.ndarray, step_s_max: np.ndarray, rows: Sequence[Row]) -> np.ndarray:
    """The same for many requests (lanes) on many rows; `step_s_max` 0: not capped."""
    running = np.array([row.running for row in rows])
    step_s = np.array([row.rare.full_step_s for row in rows])
    kv_s = np.array([row.rare.kv_s for row in rows])
    within = step_s + tokens[:, None] * kv_s <= step_s_max[:, None]
    for target in np.unique(step_s_max[step_s_max > 0.0]).tolist():
        floors = np.array([floor(row, target) for row in rows])
        within[step_s_max == target] |= running < floors
    allowed: np.ndarray = within | (running == 0) | (step_s_max == 0.0)[:, None]
    return allowed
