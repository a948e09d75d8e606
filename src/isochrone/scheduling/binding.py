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

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.nouns.settings import Settings
from isochrone.scheduling.fairness import Fairness
from isochrone.scheduling.opening import is_open
from isochrone.scheduling.placing import cheapest, without
from isochrone.scheduling.policies import Policy
from isochrone.scheduling.policies.base import NEVER, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row, forecast
from isochrone.scheduling.queue import Choice, Held, HeldQueue


def second_best(
    ask: Ask,
    rows: Sequence[Row],
    prices: Priced,
    best: int,
    now: Instant,
    settings: Settings,
    since: Instant | None = None,
) -> int | None:
    """The position to go to where `best`, the one that the policy likes best, is not open; None to wait. `since`: when
    it began to wait."""
    liked = sorted((p for p in range(len(rows)) if prices[p] < NEVER), key=prices.__getitem__)
    hits = ask.hits
    takers = [p for p in liked if is_open(ask, rows[p], now, settings, int(hits[p]) if hits is not None else 0, since)]
    if not takers:
        return None
    late_s = forecast(ask, rows[takers[0]], takers[0], now)[0] - forecast(ask, rows[best], best, now)[0]
    if late_s <= (settings.hold_slack_sheddable_s if ask.sheddable else settings.hold_slack_s):
        return takers[0]
    return next((position for position in takers if rows[position].idle), None)


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
            position = second_best(ask, pool.rows, prices, position, now, settings, held.since)
        if position is not None:
            return held, position, prices
    return None
