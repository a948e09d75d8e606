"""Who used how much: a fold of records by day, tenant, key and model.

Two views of the same additions. `take` hands out what has gathered since the last time, for a store that adds it up
over restarts and gateways; `families` are counters since the start, with a bounded number of tenants and models.

Names come from keys, configuration and instances, never from a client: a request that no instance was asked for has no
model here, since its model is whatever the client wrote.
"""

from collections.abc import Iterable

import msgspec

from isochrone.nouns.decision import Decision
from isochrone.observe.families import Family, Row
from isochrone.observe.series import OTHER, Names

TENANTS_MAX = 256
"""Tenants that are ever labels."""
MODELS_MAX = 256
"""Models that are ever labels of a tenant's counters."""
PAIRS_MAX = 4096
"""(tenant, model) pairs with counters of their own."""
ROWS_MAX = 100_000
"""Rows that wait for the store; what comes beyond is added up as key and model `other`."""
REASONS_MAX = 64
"""Reasons of refusals that are ever labels of a tenant's counters."""


class UsageRow(msgspec.Struct, kw_only=True, gc=False):
    """What one key did with one model on one day."""

    day: int
    """Days since 1970, UTC."""
    tenant: str
    key: str
    model: str
    requests: int = 0
    """All that were asked, refused ones included."""
    refused: int = 0
    """Answered with an error before any instance was asked."""
    failed: int = 0
    """Asked of an instance, and not answered to the end (client gone included)."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those that an engine's prefix cache held."""
    output_tokens: int = 0

    def add(self, other: "UsageRow") -> None:
        """Its counts on top of ours."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTS = ("requests", "refused", "failed", "prompt_tokens", "cached_tokens", "output_tokens")

_KINDS = (
    ("isochrone_tenant_requests_total", "Requests that an instance was asked for.", 0),
    ("isochrone_tenant_prompt_tokens_total", "Prompt tokens, cached ones included.", 1),
    ("isochrone_tenant_cached_tokens_total", "Prompt tokens that an engine's prefix cache held.", 2),
    ("isochrone_tenant_output_tokens_total", "Output tokens.", 3),
)


class UsageTable:
    """A sink of records. About 1 us a request."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str, str, str], UsageRow] = {}
        self._tenants = Names(TENANTS_MAX)
        self._models = Names(MODELS_MAX)
        self._reasons = Names(REASONS_MAX)
        self._served: dict[tuple[str, str], list[int]] = {}
        self._refused: dict[tuple[str, str], int] = {}

    def add(self, decision: Decision, day: int) -> None:
        """A request is over."""
        tenant, asked = decision.tenant, bool(decision.tries)
        model = decision.model if asked else ""
        row = self._row(day, tenant, decision.key, model)
        row.requests += 1
        if not asked:
            row.refused += 1
            label = (self._tenants.learn(tenant), self._reasons.learn(decision.reason or decision.outcome))
            self._refused[label] = self._refused.get(label, 0) + 1
            return
        prompt, cached, output = decision.prompt_tokens, decision.cached_tokens or 0, decision.output_tokens or 0
        if prompt is None:
            prompt = decision.prompt_tokens_estimate if decision.outcome == "done" or output else 0
        row.failed += decision.outcome != "done"
        row.prompt_tokens += prompt
        row.cached_tokens += cached
        row.output_tokens += output
        pair = (self._tenants.learn(tenant), self._models.learn(model))
        counters = self._served.get(pair) or self._counters(pair)
        counters[0] += 1
        counters[1] += prompt
        counters[2] += cached
        counters[3] += output

    def take(self) -> list[UsageRow]:
        """What has gathered, which is then gone from here."""
        rows = list(self._rows.values())
        self._rows = {}
        return rows

    def give_back(self, rows: Iterable[UsageRow]) -> None:
        """The store did not take them."""
        for row in rows:
            self._row(row.day, row.tenant, row.key, row.model).add(row)

    def pending(self) -> list[UsageRow]:
        """What has gathered."""
        return list(self._rows.values())

    def families(self) -> list[Family]:
        """Counters by tenant and model, and refusals by tenant and error code."""
        found = []
        for name, text, place in _KINDS:
            rows: list[Row] = [(pair, counters[place]) for pair, counters in self._served.items()]
            found.append(Family(name, "counter", text, ("tenant", "model"), rows))
        refusals: list[Row] = list(self._refused.items())
        text = "Requests answered with an error before any instance was asked, by error code."
        found.append(Family("isochrone_tenant_refusals_total", "counter", text, ("tenant", "reason"), refusals))
        return found

    def _row(self, day: int, tenant: str, key: str, model: str) -> UsageRow:
        place = (day, tenant, key, model)
        row = self._rows.get(place)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                place = (day, self._tenants.of(tenant), OTHER, OTHER)
                row = self._rows.get(place)
            if row is None:
                row = self._rows[place] = UsageRow(day=place[0], tenant=place[1], key=place[2], model=place[3])
        return row

    def _counters(self, pair: tuple[str, str]) -> list[int]:
        if len(self._served) >= PAIRS_MAX:
            pair = (OTHER, OTHER)
        return self._served.setdefault(pair, [0, 0, 0, 0])
