"""The rows of a pool as arrays, one number a position: what the held queue asks of every instance at once."""

from collections.abc import Sequence

import numpy as np

from isochrone.scheduling.price import Row, token_price_s

FIELDS = (
    "base_s", "share", "head_due", "factor", "token_s", "pair_s", "plain", "sheddable", "slack_per_s", "crowd_s",
    "crowd_kv_s", "pending_s", "chunk_s", "idle", "room", "full", "token_price_s",
)  # fmt: skip
BASE, SHARE, DUE, FACTOR, TOKEN, PAIR, PLAIN, SHEDDABLE, SLACK, CROWD, CROWD_KV = range(11)
PENDING, CHUNK, IDLE, ROOM, FULL, TOKEN_PRICE = range(11, 17)


def _numbers(row: Row) -> tuple[float, ...]:
    return (
        row.base_s, row.share, row.head_due, row.factor, row.token_s, row.pair_s, row.plain, row.sheddable,
        row.slack_per_s, row.crowd_s, row.crowd_kv_s, row.pending_s, row.chunk_s, row.running == 0, row.has_room,
        row.has_slot and not row.has_room, token_price_s(row),
    )  # fmt: skip


class Places:
    """FIELDS x positions."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.matrix = np.array([_numbers(row) for row in rows], dtype=np.float64).reshape(len(rows), len(FIELDS)).T
        self.idle = self.matrix[IDLE] > 0.0
        self.room = self.matrix[ROOM] > 0.0
        """A slot is free or about to be, and KV memory is below its hard limit."""

    def update(self, position: int, row: Row) -> None:
        """The row of one position changed."""
        self.matrix[:, position] = _numbers(row)
        self.idle[position] = row.running == 0
        self.room[position] = row.has_room

    def price(
        self,
        tokens: np.ndarray | float,
        hits: np.ndarray,
        output: np.ndarray | float,
        sheddable: np.ndarray | bool,
        ttft_slo_s: np.ndarray | float,
        where: int | slice,
    ) -> np.ndarray:
        """`price.equal_cost` without the head's remaining time: of many requests on the position `where`, or of one
        request on all positions. Infinite on an instance that is over its hard KV limit."""
        base, _, _, factor, token_s, pair_s, plain, shed, slack, crowd, crowd_kv = self.matrix[:11, where]
        u = tokens - hits
        work = u * (token_s + pair_s * (tokens - 0.5 * u))
        weight = np.where(sheddable, shed + ttft_slo_s * slack, plain)
        price: np.ndarray = base + factor * (work * weight + output * (crowd + crowd_kv * tokens))
        full = self.matrix[FULL, where]
        return np.where(full > 0.0, np.inf, price) if np.any(full) else price
