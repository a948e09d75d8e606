"""The late-binding queue of one pool: requests that wait in the gateway until a good place is free.

A request bound at once is bound at the worst-informed moment. Held here it can still go to the instance that comes
free first, or that holds its prefix. Each held request has a lane, each instance a position; the static part of every
price stands in a matrix lanes x positions, and an event on one instance re-prices only its column.

`best` looks at the whole queue. By key (arrival + 0.5 s + 3 * min(own work, 2 s), within priority): short work goes a
little ahead, nothing waits for ever. A request goes
  - to its cheapest instance, if that is open: idle, or with little enough pending prefill, else
  - to the cheapest instance that is open, if an open one is idle, or if it costs at most the slack more, else
  - unless it may be shed, to that instance all the same if the dearest part of the difference is not a prefix that the
    cheapest holds: a better place of another kind is there to be found again, and waiting for it idles an engine, else
  - nowhere yet; it never blocks others.
The slack is `hold_slack_s`, and HOLD_PATIENCE more for each second of waiting, so that nobody waits for ever.

Where several tenants wait, the one that was served least goes first (`scheduling/fairness.py`), and the key decides
among its own requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from isochrone.nouns.instant import SECOND, Instant
from isochrone.nouns.settings import Settings
from isochrone.scheduling import cap
from isochrone.scheduling.fairness import Fairness
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row, token_price_s

KEY_BASE_S = 0.5
KEY_WORK = 3.0
"""Seconds that a second of own work puts a request back in the order: short ones go first, for a while."""
KEY_WORK_S_MAX = 2.0
"""Own work beyond this puts it back no further, so that long prompts do not wait for ever."""
PRIORITY_S = 1e9
"""Far more than any wait: a priority class goes wholly before the next."""
HOLD_PATIENCE = 2.0
"""For each second that a request has waited, a place may be this many seconds dearer than its best one."""
FIRST_LANES = 16


class Held(msgspec.Struct, gc=False, kw_only=True):
    """One waiting request."""

    request: str
    ask: Ask
    since: Instant
    arrived_at: Instant
    key: float
    shed_at: Instant | None = None
    """From here on the TTFT objective cannot be met: refuse (sheddable requests only)."""
    barred: frozenset[int] = frozenset()
    """Slots where it may not go (tried before, or context too short)."""
    first_block: int | None = None
    priority: int = 0
    line: int = 0
    """Its tenant's line in `Fairness.counters`."""
    apart: bool = False
    """Fits only an instance that is emptied for it: not for the queue to send (`cluster/large.py`)."""
    lane: int = -1


def order_key(arrived_at: Instant, priority: int, least_work_s: float) -> float:
    """Smaller goes first; seconds."""
    due_s = arrived_at / SECOND + KEY_BASE_S + KEY_WORK * min(least_work_s, KEY_WORK_S_MAX)
    return due_s - priority * PRIORITY_S


class HeldQueue:
    """Held requests of one pool and the matrix of their prices."""

    def __init__(self) -> None:
        self.entries: dict[str, Held] = {}
        self._lanes: list[Held | None] = []
        self._free: list[int] = []
        self._barred: set[int] = set()
        """Lanes of requests that may not go everywhere."""
        self._positions = 0
        self._version = -1
        self._tokens = self._output = self._ttft = self._since = self._key = self._step_max = np.empty(0)
        self._sheddable = np.empty(0, dtype=bool)
        self._priority = self._line = np.empty(0, dtype=np.int64)
        self._hits = self._static = np.empty((0, 0))

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, held: Held, pool: Pool) -> None:
        """Let a request wait. The pool's rows must be fresh."""
        if self.is_stale(pool):
            self.rebuild(pool)
        if not self._free:
            self._grow()
        lane = self._free.pop()
        held.lane = lane
        self._lanes[lane] = held
        self.entries[held.request] = held
        if held.barred or held.apart:
            self._barred.add(lane)
        self._fill(lane, held, pool)

    def remove(self, request: str) -> Held | None:
        """Take a request out, wherever it goes."""
        held = self.entries.pop(request, None)
        if held is not None:
            self._lanes[held.lane] = None
            self._free.append(held.lane)
            self._barred.discard(held.lane)
            self._static[held.lane, :] = np.inf
            self._key[held.lane] = np.inf
            self._step_max[held.lane] = 0.0
        return held

    def reprice(self, pool: Pool, positions: Iterable[int]) -> None:
        """The rows of these positions changed."""
        assert not self.is_stale(pool)
        for position in positions:
            self._price_column(position, pool.rows[position])

    def rehit(self, pool: Pool, position: int, hits: dict[str, int]) -> None:
        """Cached tokens of these requests on this position changed."""
        for request, tokens in hits.items():
            self._hits[self.entries[request].lane, position] = tokens
        self._price_column(position, pool.rows[position])

    def best(
        self, pool: Pool, now: Instant, settings: Settings, fairness: Fairness | None = None
    ) -> Choice | None:  # fmt: skip
        """The request to send next and where, or None. The pool's rows must be fresh and re-priced."""
        if not self.entries:
            return None
        assert not self.is_stale(pool)
        pending = np.array([row.pending_s + max(0, row.head_due - now) * 1e-9 for row in pool.rows])
        room = np.array([row.has_room for row in pool.rows])
        idle = np.array([row.idle for row in pool.rows])
        chunk_s = np.array([row.chunk_s for row in pool.rows])
        open_plain = room & (idle | (pending <= settings.hold_chunks * chunk_s))
        open_sheddable = room & (idle | (pending <= settings.hold_chunks_sheddable * chunk_s))
        if not (open_plain.any() or open_sheddable.any()):
            return None
        head = np.array([row.share * max(0, row.head_due - now) * 1e-9 for row in pool.rows])
        price = self._static + head
        open_now = np.where(self._sheddable[:, None], open_sheddable, open_plain)
        if self._step_max.any():
            open_now &= idle | cap.allows_many(self._tokens, self._step_max, pool.rows)
        open_price = np.where(open_now, price, np.inf)
        best_open = open_price.min(axis=1)
        idle_fits = (np.isfinite(price) & (idle & room)).any(axis=1)
        slack = settings.hold_slack_s + HOLD_PATIENCE * 1e-9 * (now - self._since)
        near = (best_open <= price.min(axis=1) + slack) | (self._saved(price, open_price, pool) <= slack)
        goes = np.isfinite(best_open) & (near | idle_fits)
        if not goes.any():
            return None
        held = self._first(goes, fairness)
        return held, int(open_price[held.lane].argmin()), price[held.lane]

    def _saved(self, price: np.ndarray, open_price: np.ndarray, pool: Pool) -> np.ndarray:
        """What each request would save by the deeper prefix of its cheapest instance, against its cheapest open one."""
        here, there = open_price.argmin(axis=1), price.argmin(axis=1)
        lanes = np.arange(len(price))
        deeper = self._hits[lanes, there] - self._hits[lanes, here]
        saved: np.ndarray = deeper * np.array([token_price_s(row) for row in pool.rows])[here]
        return np.where(self._sheddable, np.inf, saved)

    def _first(self, goes: np.ndarray, fairness: Fairness | None) -> Held:
        """Whose turn it is, of the lanes that can go."""
        if fairness is None:
            lane = int(np.where(goes, self._key, np.inf).argmin())
        else:
            lanes = np.flatnonzero(goes)
            lanes = lanes[self._priority[lanes] == self._priority[lanes].max()]
            served = fairness.counters[self._line[lanes]]
            lanes = lanes[served == served.min()]
            lane = int(lanes[self._key[lanes].argmin()])
        held = self._lanes[lane]
        assert held is not None
        return held

    def share(self, fairness: Fairness, tenant_of: Callable[[Held], str]) -> None:
        """Requests of several tenants wait from here on: look up whose each is."""
        for held in self.entries.values():
            held.line = fairness.line(tenant_of(held))
            self._line[held.lane] = held.line

    def in_turn(self, fairness: Fairness | None) -> list[Held]:
        """Everything held, by whose turn it is."""
        return sorted(self.entries.values(), key=_by_key if fairness is None else _turn(fairness))

    def in_order(self) -> list[Held]:
        """Everything held, by key."""
        return sorted(self.entries.values(), key=_by_key)

    def hits_of(self, held: Held) -> list[int]:
        """Cached tokens by position, as last counted."""
        return [int(tokens) for tokens in self._hits[held.lane]]

    def is_stale(self, pool: Pool) -> bool:
        """The pool's membership has changed since: positions mean other instances now."""
        return self._version != pool.version

    def rebuild(self, pool: Pool) -> None:
        """Lay the matrix out for the pool's members of now. The asks' hits must have been counted for them."""
        self._version = pool.version
        self._positions = len(pool.rows)
        self._hits = np.zeros((len(self._lanes), self._positions))
        self._static = np.full((len(self._lanes), self._positions), np.inf)
        for held in self.entries.values():
            self._fill(held.lane, held, pool)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        old = len(self._lanes)
        new = max(FIRST_LANES, 2 * old)
        self._lanes += [None] * (new - old)
        self._free = list(range(new - 1, old - 1, -1))

        def longer(column: np.ndarray, fill: float) -> np.ndarray:
            grown = np.full((new, *column.shape[1:]), fill, dtype=column.dtype)
            grown[:old] = column
            return grown

        self._tokens, self._output = longer(self._tokens, 0), longer(self._output, 0)
        self._ttft, self._key = longer(self._ttft, 0), longer(self._key, np.inf)
        self._since = longer(self._since, 0)
        self._step_max = longer(self._step_max, 0)
        self._priority, self._line = longer(self._priority, 0), longer(self._line, 0)
        self._sheddable = longer(self._sheddable, False)
        self._hits, self._static = longer(self._hits, 0), longer(self._static, np.inf)

    def _fill(self, lane: int, held: Held, pool: Pool) -> None:
        ask = held.ask
        self._tokens[lane], self._output[lane] = ask.prompt_tokens, ask.output_tokens
        self._ttft[lane], self._key[lane] = ask.ttft_slo_s, held.key
        self._since[lane] = held.since
        self._sheddable[lane], self._step_max[lane] = ask.sheddable, ask.step_s_max
        self._priority[lane], self._line[lane] = held.priority, held.line
        self._hits[lane, :] = 0 if ask.hits is None else np.asarray(ask.hits)
        for position, row in enumerate(pool.rows):
            self._static[lane, position] = self._price(slice(lane, lane + 1), position, row)[0]
            if held.apart or row.slot in held.barred:
                self._static[lane, position] = np.inf

    def _price_column(self, position: int, row: Row) -> None:
        column = self._price(slice(None), position, row)
        column[np.isinf(self._key)] = np.inf  # free lanes
        for lane in self._barred:
            held = self._lanes[lane]
            if held is not None and (held.apart or row.slot in held.barred):
                column[lane] = np.inf
        self._static[:, position] = column

    def _price(self, lanes: slice, position: int, row: Row) -> np.ndarray:
        """`price.equal_cost` for many requests on one row, without the head's remaining time."""
        tokens = self._tokens[lanes]
        u = tokens - self._hits[lanes, position]
        work = u * (row.token_s + row.pair_s * (tokens - 0.5 * u))
        sheddable = row.sheddable + self._ttft[lanes] * row.slack_per_s
        weight = np.where(self._sheddable[lanes], sheddable, row.plain)
        decode = self._output[lanes] * (row.crowd_s + row.crowd_kv_s * tokens)
        price: np.ndarray = row.base_s + row.factor * (work * weight + decode)
        if row.has_slot and not row.has_room:  # over the hard KV limit
            price = np.full_like(price, np.inf)
        return price


def _by_key(held: Held) -> float:
    return held.key


def _turn(fairness: Fairness) -> Callable[[Held], tuple[int, float, float]]:
    """Priority first, then the tenant that was served least, then the key."""
    counters = fairness.counters
    return lambda held: (-held.priority, float(counters[held.line]), held.key)


Choice = tuple[Held, int, Sequence[float] | np.ndarray]
"""Request, position of the winner, and its price on every position."""
