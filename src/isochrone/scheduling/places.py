"""The rows of a pool as arrays, one number a position: what is asked of every instance at once.

A pool of VECTOR_FROM members or more keeps one of these up to date; the held queue makes its own for a smaller pool.
"""

from collections.abc import Sequence

import numpy as np

from isochrone.nouns.instant import Instant
from isochrone.scheduling.price import MATRIX_FIELDS, Row, column, token_price_s

FIELDS = (*MATRIX_FIELDS, "pending_s", "chunk_s", "idle", "room", "full", "token_price_s", "level_factor",
          "kv_spare_tokens", "wait_s", "step_s", "spare_tokens")  # fmt: skip
BASE, SHARE, DUE, FACTOR, TOKEN, PAIR, PLAIN, SHEDDABLE, SLACK, CROWD, CROWD_KV, COLD = range(12)
PENDING, CHUNK, IDLE, ROOM, FULL, TOKEN_PRICE, LEVEL, KV_SPARE, WAIT, STEP, SPARE = range(12, 23)

ALL = slice(None)
"""Every position."""


def _numbers(row: Row) -> tuple[float, ...]:
    step_s = row.step_s * row.level_factor
    wait_s = row.pending_s + row.slot_wait_s + (0.5 * step_s if row.running else 0.0)
    return (
        *column(row), row.pending_s, row.chunk_s, row.running == 0, row.has_room, row.has_slot and not row.has_room,
        token_price_s(row), row.level_factor, row.kv_spare_tokens, wait_s, step_s, row.spare_tokens,
    )  # fmt: skip


class Places:
    """FIELDS x positions."""

    def __init__(self, rows: Sequence[Row]) -> None:
        numbers = np.array([_numbers(row) for row in rows], dtype=np.float64).reshape(len(rows), len(FIELDS))
        self.matrix = numbers.T.copy()
        self.idle = self.matrix[IDLE] > 0.0
        self.room = self.matrix[ROOM] > 0.0
        """A slot is free or about to be, and KV memory is below its hard limit."""
        self.slots = np.array([row.slot for row in rows], dtype=np.intp)
        """Of the instance on each position."""

    @property
    def priced(self) -> np.ndarray:
        """MATRIX_FIELDS x positions: what `price.equal_cost_matrix` takes."""
        priced: np.ndarray = self.matrix[: len(MATRIX_FIELDS)]
        return priced

    def update(self, position: int, row: Row) -> None:
        """The row of one position changed."""
        self.matrix[:, position] = _numbers(row)
        self.idle[position] = row.running == 0
        self.room[position] = row.has_room

    def head_s(self, now: Instant) -> np.ndarray:
        """Seconds until the head of each line should have its first token."""
        head_s: np.ndarray = np.maximum(self.matrix[DUE] - now, 0.0) * 1e-9
        return head_s

    def first_token_s(
        self, tokens: np.ndarray, u: np.ndarray, now: Instant, where: np.ndarray | slice = ALL
    ) -> np.ndarray:  # fmt: skip
        """`price.first_token_s`; `u`: uncached tokens, requests x the positions `where`; `tokens`: requests x 1."""
        token_s, pair_s, level, wait_s, step_s, spare = self.matrix[[TOKEN, PAIR, LEVEL, WAIT, STEP, SPARE]][:, where]
        own_s = u * (token_s + pair_s * (tokens - 0.5 * u)) * level + np.maximum(1.0 - u / spare, 0.0) * step_s
        first_token_s: np.ndarray = wait_s + self.head_s(now)[where] + own_s
        return first_token_s

    def least_work_s(self, tokens: int, hits: Sequence[int] | None) -> float:
        """`price.own_work_s` where it is least."""
        token_s, pair_s = self.matrix[TOKEN], self.matrix[PAIR]
        u = np.subtract(float(tokens), 0.0 if hits is None else hits)
        return float((u * (token_s + pair_s * (tokens - 0.5 * u)) * self.matrix[LEVEL]).min(initial=np.inf))

    def price(
        self,
        tokens: np.ndarray | float,
        hits: np.ndarray,
        output: np.ndarray | float,
        sheddable: np.ndarray | bool,
        ttft_slo_s: np.ndarray | float,
        where: int | slice | np.ndarray,
    ) -> np.ndarray:
        """`price.equal_cost` without the head's remaining time: of many requests on the position `where` or on
        several, or of one request on all positions. Infinite on an instance that is over its hard KV limit."""
        base, _, _, factor, token_s, pair_s, plain, shed, slack, crowd, crowd_kv = self.matrix[:11, where]
        u = tokens - hits
        work = u * (token_s + pair_s * (tokens - 0.5 * u))
        weight = np.where(sheddable, shed + ttft_slo_s * slack, plain)
        price: np.ndarray = base + factor * (work * weight + output * (crowd + crowd_kv * tokens))
        full = self.matrix[FULL, where]
        return np.where(full > 0.0, np.inf, price) if np.any(full) else price
