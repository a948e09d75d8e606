"""A cap on concurrency from the TPOT target; off unless `cap_ratio` is set.

A request with a TPOT target goes to an instance only while a decode step with it in the batch takes at most `cap_ratio`
of the target by the step model:

    f * (a + b*(B + 1) + k*(K + n)) <= cap_ratio * TPOT target

(the rest of the target is left for prefill in the same steps). It never binds below the batch at which the measured
median gap reaches that much (`instances/gaps.py`), and an idle instance is always eligible. Late binding alone lost no
throughput where prompts share prefixes, which is why this is off by default.
"""

from collections.abc import Sequence

import numpy as np

from isochrone.instances.table import Instance
from isochrone.scheduling.price import Ask, Row


def allows(ask: Ask, row: Row, instance: Instance) -> bool:
    """Whether the cap lets the request go to this instance now. For asks with `step_s_max` above zero."""
    if row.idle or row.batch == 0:
        return True
    step_s = (row.step_s + row.crowd_kv_s / row.batch * ask.prompt_tokens) * row.level_factor
    return step_s <= ask.step_s_max or row.batch < floor(instance, ask.step_s_max)


def floor(instance: Instance, step_s_max: float) -> int:
    """The batch below which the cap does not bind here; 0 where nothing was measured, for then the model is all."""
    return instance.gaps.floor(step_s_max) if instance.gaps is not None else 0


def allows_many(
    tokens: np.ndarray, step_s_max: np.ndarray, rows: Sequence[Row], members: Sequence[Instance]
) -> np.ndarray:
    """The same for many requests (lanes) on many rows; `step_s_max` 0: not capped."""
    batch = np.array([row.batch for row in rows])
    free = np.array([row.idle or row.batch == 0 for row in rows])
    factor = np.array([row.level_factor for row in rows])
    step_s = np.array([row.step_s for row in rows]) * factor
    kv_s = np.array([row.crowd_kv_s / row.batch if row.batch else 0.0 for row in rows]) * factor
    within = step_s + tokens[:, None] * kv_s <= step_s_max[:, None]
    for target in np.unique(step_s_max[step_s_max > 0.0]).tolist():
        lanes = step_s_max == target
        floors = np.array([floor(instance, target) for instance in members])
        within[lanes] |= batch < floors
    result: np.ndarray = within | free | (step_s_max == 0.0)[:, None]
    return result
