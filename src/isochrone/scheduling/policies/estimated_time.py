"""The textbook's estimate of when a request would be done, term by term.

    queue_len * avg_req_time + prompt/prefill_tps + max_tokens/decode_tps
        + max(0, kv_used - 0.8) * 100 + slow_score * 50

The last two are penalties without a unit. Unhealthy and slot-less instances are skipped. It is here to be compared
with: it counts the client's max_tokens as output, knows no prefix cache and queues by count.
"""

from functools import reduce
from operator import add
from typing import ClassVar

import numpy as np

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import NEVER, Priced, Quiet
from isochrone.scheduling.policies.followed import Followed
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row

KV_FREE_RATIO = 0.8
KV_PENALTY = 100.0
SLOW_PENALTY = 50.0


class EstimatedTime(Quiet):
    """The formula above; `slow_score` is how much longer than its class an instance takes (0: as its class)."""

    name: ClassVar[str] = "estimated-time"
    summary: ClassVar[str] = "the textbook's estimated completion time"

    def __init__(self, chance: Chance) -> None:
        self._numbers = Followed(_numbers)

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        output = request.max_tokens if request.max_tokens is not None else ask.output_tokens
        if pool.places is not None:
            return _prices(ask.prompt_tokens, output, *self._numbers.of(pool))
        # Not `sum`: from Python 3.12 on it rounds less, and a pool of many would have other ties than one of few.
        return [
            reduce(add, _terms(ask.prompt_tokens, output, row).values()) if row.has_slot else NEVER for row in pool.rows
        ]

    def terms(self, ask: Ask, row: Row, position: int, price: float, now: Instant) -> dict[str, float]:
        known = _terms(ask.prompt_tokens, 0.0, row)
        known["decode"] = price - sum(known.values())
        return known


def _terms(prompt_tokens: int, output_tokens: float, row: Row) -> dict[str, float]:
    return {
        "queue": row.running * row.mean_request_s,
        "prefill": prompt_tokens * row.token_s * row.level_factor,
        "decode": output_tokens * row.step_s * row.level_factor,
        "kv_penalty": max(0.0, (row.kv_usage_ratio or 0.0) - KV_FREE_RATIO) * KV_PENALTY,
        "slow_penalty": max(0.0, row.level_factor - 1.0) * SLOW_PENALTY,
    }


def _numbers(row: Row, instance: Instance) -> tuple[float, ...]:
    """What the terms read of a row."""
    kv_usage = row.kv_usage_ratio or 0.0
    return row.running, row.mean_request_s, row.token_s, row.level_factor, row.step_s, kv_usage, row.has_slot


def _prices(
    prompt_tokens: int,
    output_tokens: float,
    running: np.ndarray,
    mean_request_s: np.ndarray,
    token_s: np.ndarray,
    level_factor: np.ndarray,
    step_s: np.ndarray,
    kv_usage: np.ndarray,
    has_slot: np.ndarray,
) -> np.ndarray:
    """The terms above summed in their order, for every instance at once."""
    price = running * mean_request_s + prompt_tokens * token_s * level_factor + output_tokens * step_s * level_factor
    price = price + np.maximum(0.0, kv_usage - KV_FREE_RATIO) * KV_PENALTY
    price = price + np.maximum(0.0, level_factor - 1.0) * SLOW_PENALTY
    return np.where(has_slot > 0.0, price, NEVER)
