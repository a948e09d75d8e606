"""Late binding for any policy: where a request may go now, or that it had better wait.

The queue of `scheduling/queue.py` does this for the equal-cost price, whose seconds it keeps in a matrix. Another
policy's prices have a unit of their own, if any, and may depend on the whole pool, so it is asked again for each held
request. Eligibility, order and shedding are the same for all; so is the rule of when a second-best place is good
enough, which is put in seconds to the first token here. A request goes
  - to the place that the policy likes best, if that is open (`scheduling/opening.py`), else
  - to the open place that it likes best, if that is idle or its first token comes at most `hold_slack_s` later, else
  - to the idle place that it likes best, for an idle instance is never refused to a request, else
  - nowhere yet; it never blocks others.
"""

from collections.abc import Callable, Sequence

import numpy as np

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.nouns.settings import Settings
from isochrone.scheduling.fairness import Fairness
from isochrone.scheduling.opening import is_open
from isochrone.scheduling.places import CHUNK, PENDING, Places
from isochrone.scheduling.placing import cheapest, without
from isochrone.scheduling.policies import Policy
from isochrone.scheduling.policies.base import NEVER, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row, forecast
from isochrone.scheduling.queue import Choice, Held, HeldQueue

ROUNDING_S = 1e-6
"""Positions are sorted out in advance by arrays, which hold instants as floats, and decided one by one."""


def second_best(
    ask: Ask,
    rows: Sequence[Row],
    prices: Priced,
    best: int,
    now: Instant,
    settings: Settings,
    since: Instant | None = None,
    places: Places | None = None,
) -> int | None:
    """The position to go to where `best`, the one that the policy likes best, is not open; None to wait. `since`: when
    it began to wait. `places`: of a large pool; most positions that are not open are not looked at one by one then."""
    if places is None:
        liked = sorted((p for p in range(len(rows)) if prices[p] < NEVER), key=prices.__getitem__)
    else:
        liked = _liked_of_many(ask, np.asarray(prices), places, now, settings)
    hits = ask.hits
    takers = (p for p in liked if is_open(ask, rows[p], now, settings, int(hits[p]) if hits is not None else 0, since))
    first = next(takers, None)
    if first is None:
        return None
    late_s = forecast(ask, rows[first], first, now)[0] - forecast(ask, rows[best], best, now)[0]
    if late_s <= (settings.hold_slack_sheddable_s if ask.sheddable else settings.hold_slack_s):
        return first
    return next((position for position in liked if rows[position].idle), None)


def _liked_of_many(ask: Ask, prices: np.ndarray, places: Places, now: Instant, settings: Settings) -> list[int]:
    """Positions by price, equal ones by position, without those that are full or have too much prefill pending."""
    chunks = settings.hold_chunks_sheddable if ask.sheddable else settings.hold_chunks
    little = places.matrix[PENDING] + places.head_s(now) <= chunks * places.matrix[CHUNK] + ROUNDING_S
    may = np.flatnonzero((places.idle | (places.room & little)) & (prices < NEVER))
    liked: list[int] = may[np.argsort(prices[may], kind="stable")].tolist()
    return liked


def next_held(
    queue: HeldQueue,
    pool: Pool,
    policy: Policy,
    request_of: Callable[[Held], Request],
    now: Instant,
    settings: Settings,
    chance: Chance,
    fairness: Fairness | None = None,
) -> Choice | None:
    """The held request to send next and where, or None: `HeldQueue.best` for a policy that prices for itself."""
    for held in queue.in_turn(fairness, queue.some_open(pool, now, settings)):
        ask = held.ask
        if held.apart:
            continue
        ask.hits = queue.hits_of(held)
        prices = without(policy.prices(ask, request_of(held), pool, now), pool, held.barred)
        position = cheapest(prices, ask.hits if policy.ties_by_hit else None, chance)
        if position is None:
            continue
        if not is_open(ask, pool.rows[position], now, settings, int(ask.hits[position]), held.since):
            position = second_best(ask, pool.rows, prices, position, now, settings, held.since, pool.places)
        if position is not None:
            return held, position, prices
    return None
