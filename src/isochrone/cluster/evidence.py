"""What a decision keeps so that it can be explained later, at little cost now: immutable rows, not computed terms."""

from collections.abc import Sequence

import msgspec
import numpy as np

from isochrone.nouns.decision import Candidate, Decision
from isochrone.nouns.instant import Instant
from isochrone.scheduling.policies import Policy, Priced
from isochrone.scheduling.price import Ask, Row, forecast

CANDIDATES_KEPT = 64
"""Of more candidates than these, the cheapest ones are kept (and the winner)."""
CANDIDATES_OF_MANY = 8
SPREAD_OVER = 64


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """The candidates of one choice as the policy saw them."""

    policy: Policy
    ask: Ask
    hits: Sequence[int] | None
    rows: Sequence[Row]
    prices: Sequence[float]
    at: Instant
    of: int
    """Candidates in all; more than len(rows) where only the cheapest are kept."""


def evidence(policy: Policy, ask: Ask, rows: list[Row], prices: Priced, winner: int, now: Instant) -> Evidence:
    """Copy references; nothing is computed for up to CANDIDATES_KEPT candidates."""
    count = len(rows)
    if count <= CANDIDATES_KEPT:
        return Evidence(policy, ask, ask.hits, rows[:], list(prices), now, count)
    kept = np.argpartition(np.asarray(prices), CANDIDATES_OF_MANY)[:CANDIDATES_OF_MANY].tolist()
    if winner not in kept:
        kept[-1] = winner
    hits = None if ask.hits is None else [int(ask.hits[i]) for i in kept]
    return Evidence(policy, ask, hits, [rows[i] for i in kept], [float(prices[i]) for i in kept], now, count)


def spread(ask: Ask, rows: Sequence[Row], now: Instant) -> float:
    """Slowest minus fastest forecast to the last token over the candidates, in seconds: how unequal the cluster is.

    Of many candidates some SPREAD_OVER are looked at, evenly spaced.
    """
    some = range(0, len(rows), max(1, len(rows) // SPREAD_OVER))
    forecasts = [forecast(ask, rows[position], position, now)[1] for position in some]
    return max(forecasts) - min(forecasts)


def candidates(decision: Decision) -> list[Candidate]:
    """The candidates with price terms and forecasts in seconds, cheapest first."""
    kept = decision.evidence
    if not isinstance(kept, Evidence):
        return []
    policy, ask, at = kept.policy, kept.ask, kept.at
    as_then = Ask(
        prompt_tokens=ask.prompt_tokens,
        output_tokens=ask.output_tokens,
        hits=kept.hits,
        sheddable=ask.sheddable,
        ttft_slo_s=ask.ttft_slo_s,
    )
    found = []
    for position, (row, price) in enumerate(zip(kept.rows, kept.prices, strict=True)):
        ttft_s, e2e_s = forecast(as_then, row, position, at)
        found.append(
            Candidate(
                instance=row.id,
                price_s=float(price),
                terms={name: float(value) for name, value in policy.terms(as_then, row, position, price, at).items()},
                hit_tokens=int(kept.hits[position]) if kept.hits is not None else 0,
                open=row.has_room,
                forecast_ttft_s=float(ttft_s),
                forecast_e2e_s=float(e2e_s),
            )
        )
    return sorted(found, key=_by_price)


def _by_price(candidate: Candidate) -> float:
    return candidate.price_s
