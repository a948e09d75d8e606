"""The late-binding queue of one pool: requests that wait in the gateway until a good place is free.

A request bound at once is bound at the worst-informed moment. Held here it can still go to the instance that comes
free first, or that holds its prefix. Each held request has a lane, each instance a position; the static part of every
price stands in a matrix lanes x positions, and an event on one instance re-prices only its column.

`best` looks at the whole queue. By key (arrival + 0.5 s + 3 * min(own work, 2 s), within priority): short work goes a
little ahead, nothing waits for ever. A request goes
  - to its cheapest instance, if that is open (`scheduling/opening.py`), else
  - to the cheapest instance that is open, if an open one is idle, or if it costs at most the slack more, else
  - unless it may be shed, to that instance all the same if the dearest part of the difference is not a prefix that the
    cheapest holds: a better place of another kind is there to be found again, and waiting for it idles an engine, else
  - nowhere yet; it never blocks others.
The slack is `hold_slack_s` or `hold_slack_sheddable_s`, and HOLD_PATIENCE more for each second of waiting, so that
nobody waits for ever.

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
from isochrone.scheduling.opening import unfit
from isochrone.scheduling.places import CHUNK, PENDING, SHARE, TOKEN_PRICE, Places
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

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
MANY_COLUMNS = 2
"""Columns from which re-pricing them together is quicker than one by one."""
COLUMNS = ("tokens", "output", "ttft_slo_s", "sheddable", "step_s_max", "since", "key", "priority", "line",
           "first_token_due")  # fmt: skip
TOKENS, MAY_SHED, STEP_MAX, SINCE, KEY, PRIORITY, LINE, DUE_AT = 0, 3, 4, 5, 6, 7, 8, 9


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
    """Held requests of one pool and the matrix of their prices. Lanes 0 to n - 1 are in use: the last one moves into a
    gap."""

    def __init__(self) -> None:
        self.entries: dict[str, Held] = {}
        self._lanes: list[Held] = []
        self._places = Places(())
        self._slots: list[int] = []
        """Of the instance on each position."""
        self._version = -1
        self._capped = self._plain = self._barred = 0
        """How many have a cap, may not be shed, may not go everywhere."""
        self._numbers = np.zeros((len(COLUMNS), 0))
        """COLUMNS x lanes."""
        self._hits = self._static = np.empty((0, 0))

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, held: Held, pool: Pool) -> None:
        """Let a request wait. The pool's rows must be fresh."""
        followed = self._lanes or self._places is pool.places  # else rows are not followed while nobody waits
        if not followed or self.is_stale(pool):
            self.rebuild(pool)
        lane = len(self._lanes)
        if lane == self._numbers.shape[1]:
            self._grow()
        held.lane = lane
        self._lanes.append(held)
        self.entries[held.request] = held
        self._count(held, 1)
        self._fill(held)

    def remove(self, request: str) -> Held | None:
        """Take a request out, wherever it goes."""
        held = self.entries.pop(request, None)
        if held is None:
            return None
        self._count(held, -1)
        last = self._lanes.pop()
        if last is not held:
            gap = held.lane
            self._lanes[gap] = last
            for columns in (self._numbers.T, self._hits, self._static):
                columns[gap] = columns[last.lane]
            last.lane = gap
        held.lane = -1
        return held

    def reprice(self, pool: Pool, positions: Sequence[int]) -> None:
        """The rows of these positions changed."""
        assert not self.is_stale(pool)
        if self._places is not pool.places:
            for position in positions:
                self._places.update(position, pool.rows[position])
        if len(positions) < MANY_COLUMNS:
            for position in positions:
                self._price_column(position)
        else:
            self._price_columns(np.asarray(positions))

    def rehit(self, pool: Pool, position: int, hits: dict[str, int]) -> None:
        """Cached tokens of these requests on this position changed."""
        assert not self.is_stale(pool)
        for request, tokens in hits.items():
            self._hits[self.entries[request].lane, position] = tokens
        self._price_column(position)

    def best(
        self, pool: Pool, now: Instant, settings: Settings, fairness: Fairness | None = None
    ) -> Choice | None:  # fmt: skip
        """The request to send next and where, or None. The pool's rows must be fresh and re-priced."""
        n = len(self._lanes)
        if not n:
            return None
        assert not self.is_stale(pool)
        places = self._places
        fields = places.matrix
        head = places.head_s(now)
        pending = fields[PENDING] + head
        plain = places.idle | (pending <= settings.hold_chunks * fields[CHUNK])
        sheddable = places.idle | (pending <= settings.hold_chunks_sheddable * fields[CHUNK])
        takes = plain if self._plain == n else sheddable if not self._plain else plain | sheddable
        takers = np.flatnonzero(places.room & takes)
        if not takers.size:
            return None
        price = self._static[:n] + fields[SHARE] * head
        open_price = price[:, takers]
        if 0 < self._plain < n:  # both kinds wait, and what is open to one may not be to the other
            is_open = np.where(self._sheddable(n)[:, None], sheddable[takers], plain[takers])
            open_price[~is_open] = np.inf
        tokens, due, since = self._numbers[[TOKENS, DUE_AT, SINCE], :n]
        closed = unfit(places, tokens, self._hits[:n, takers], due, since, now, takers)
        open_price[closed & ~places.idle[takers]] = np.inf
        if self._capped:
            allowed = cap.allows_many(tokens, self._numbers[STEP_MAX, :n], pool.rows)
            open_price[~(places.idle | allowed)[:, takers]] = np.inf
        best_open = open_price.min(axis=1)
        slack = np.full(n, settings.hold_slack_s)
        if self._plain < n:
            slack[self._sheddable(n)] = settings.hold_slack_sheddable_s
        slack += HOLD_PATIENCE * 1e-9 * (now - since)
        goes = best_open <= price.min(axis=1) + slack
        if self._plain:
            goes |= self._saved(price, open_price, takers) <= slack
        idle = places.idle[takers]
        if idle.any():
            goes |= np.isfinite(open_price[:, idle]).any(axis=1)
        goes &= best_open < np.inf
        if not goes.any():
            return None
        held = self._first(goes, fairness)
        return held, int(takers[open_price[held.lane].argmin()]), price[held.lane]

    def some_open(self, pool: Pool, now: Instant, settings: Settings) -> list[Held]:
        """The requests that are open somewhere (`opening.is_open`, the cap aside), in no order: all that a policy which
        prices for itself need be asked about."""
        n = len(self._lanes)
        if not n:
            return []
        assert not self.is_stale(pool)
        places = self._places
        pending = places.matrix[PENDING] + places.head_s(now)
        chunks = np.where(self._sheddable(n), settings.hold_chunks_sheddable, settings.hold_chunks)
        little = places.room & (pending <= chunks[:, None] * places.matrix[CHUNK])
        takers = np.flatnonzero(little.any(axis=0))
        if takers.size:
            tokens, due, since = self._numbers[[TOKENS, DUE_AT, SINCE], :n]
            little[:, takers] &= ~unfit(places, tokens, self._hits[:n, takers], due, since, now, takers)
        found: list[int] = np.flatnonzero((places.idle | little).any(axis=1)).tolist()
        return [self._lanes[lane] for lane in found]

    def _sheddable(self, n: int) -> np.ndarray:
        sheddable: np.ndarray = self._numbers[MAY_SHED, :n] > 0.0
        return sheddable

    def _saved(self, price: np.ndarray, open_price: np.ndarray, takers: np.ndarray) -> np.ndarray:
        """What each request would save by the deeper prefix of its cheapest instance, against its cheapest open one."""
        n = len(price)
        lanes = np.arange(n)
        here, there = takers[open_price.argmin(axis=1)], price.argmin(axis=1)
        deeper = self._hits[lanes, there] - self._hits[lanes, here]
        saved: np.ndarray = deeper * self._places.matrix[TOKEN_PRICE, here]
        return np.where(self._sheddable(n), np.inf, saved)

    def _first(self, goes: np.ndarray, fairness: Fairness | None) -> Held:
        """Whose turn it is, of the lanes that can go."""
        lanes = np.flatnonzero(goes)
        if fairness is not None:
            priority = self._numbers[PRIORITY, lanes]
            lanes = lanes[priority == priority.max()]
            served = fairness.counters[self._numbers[LINE, lanes].astype(np.intp)]
            lanes = lanes[served == served.min()]
        return self._lanes[int(lanes[self._numbers[KEY, lanes].argmin()])]

    def share(self, fairness: Fairness, tenant_of: Callable[[Held], str]) -> None:
        """Requests of several tenants wait from here on: look up whose each is."""
        for held in self.entries.values():
            held.line = fairness.line(tenant_of(held))
            self._numbers[LINE, held.lane] = held.line

    def in_turn(self, fairness: Fairness | None, some: Iterable[Held] | None = None) -> list[Held]:
        """Everything held, or some of it, by whose turn it is."""
        wanted = self.entries.values() if some is None else some
        return sorted(wanted, key=_by_key if fairness is None else _turn(fairness))

    def in_order(self) -> list[Held]:
        """Everything held, by key."""
        return sorted(self.entries.values(), key=_by_key)

    def hits_of(self, held: Held) -> list[int]:
        """Cached tokens by position, as last counted."""
        hits: list[int] = self._hits[held.lane].astype(np.int64).tolist()
        return hits

    def is_stale(self, pool: Pool) -> bool:
        """The pool's membership has changed since: positions mean other instances now."""
        return self._version != pool.version

    def rebuild(self, pool: Pool) -> None:
        """Lay the matrix out for the pool's members of now. The asks' hits must have been counted for them."""
        self._version = pool.version
        self._places = pool.places or Places(pool.rows)
        lanes, positions = self._numbers.shape[1], len(pool.rows)
        self._slots = pool.slots
        self._hits, self._static = np.zeros((lanes, positions)), np.zeros((lanes, positions))
        for held in self._lanes:
            self._fill(held)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        old = self._numbers.shape[1]
        new = max(FIRST_LANES, 2 * old)
        self._numbers = np.concatenate([self._numbers, np.zeros((len(COLUMNS), new - old))], axis=1)
        more = np.zeros((new - old, self._hits.shape[1]))
        self._hits, self._static = np.concatenate([self._hits, more]), np.concatenate([self._static, more])

    def _count(self, held: Held, by: int) -> None:
        self._plain += 0 if held.ask.sheddable else by
        self._capped += by if held.ask.step_s_max else 0
        self._barred += by if held.barred or held.apart else 0

    def _fill(self, held: Held) -> None:
        ask, lane = held.ask, held.lane
        self._numbers[:, lane] = (
            ask.prompt_tokens, ask.output_tokens, ask.ttft_slo_s, ask.sheddable, ask.step_s_max, held.since, held.key,
            held.priority, held.line, ask.first_token_due,
        )  # fmt: skip
        hits = self._hits[lane]
        hits[:] = 0 if ask.hits is None else ask.hits
        static = self._static[lane]
        static[:] = self._places.price(
            float(ask.prompt_tokens), hits, ask.output_tokens, ask.sheddable, ask.ttft_slo_s, slice(None)
        )
        if held.apart:
            static[:] = np.inf
        elif held.barred:
            static[[slot in held.barred for slot in self._slots]] = np.inf

    def _price_columns(self, positions: np.ndarray) -> None:
        """`_price_column` of several at once."""
        n = len(self._lanes)
        tokens, output, ttft, sheddable = self._numbers[:4, :n, None]
        price = self._places.price(tokens, self._hits[:n, positions], output, sheddable > 0.0, ttft, positions)
        if self._barred:
            slots = [self._slots[position] for position in positions.tolist()]
            for held in self._lanes:
                if held.apart or held.barred:
                    price[held.lane, [held.apart or slot in held.barred for slot in slots]] = np.inf
        self._static[:n, positions] = price

    def _price_column(self, position: int) -> None:
        n = len(self._lanes)
        tokens, output, ttft, sheddable = self._numbers[:4, :n]
        column = self._static[:n, position]
        column[:] = self._places.price(tokens, self._hits[:n, position], output, sheddable > 0.0, ttft, position)
        if self._barred:
            slot = self._slots[position]
            for held in self._lanes:
                if held.apart or slot in held.barred:
                    column[held.lane] = np.inf


def _by_key(held: Held) -> float:
    return held.key


def _turn(fairness: Fairness) -> Callable[[Held], tuple[int, float, float]]:
    """Priority first, then the tenant that was served least, then the key."""
    counters = fairness.counters
    return lambda held: (-held.priority, float(counters[held.line]), held.key)


Choice = tuple[Held, int, Sequence[float] | np.ndarray]
"""Request, position of the winner, and its price on every position."""
