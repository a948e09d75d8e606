"""Usage by day, tenant, key and model, and its bounded counters."""

import pytest

from isochrone.nouns.decision import Decision, Try
from isochrone.observe import usage
from isochrone.observe.usage import UsageRow, UsageTable


def decision(**changes: object) -> Decision:
    values: dict[str, object] = {
        "request": "r", "model": "m", "path": "/", "tenant": "acme", "key": "key-1", "route": "default", "stream": True,
        "policy": "p", "arrived_at": 0, "prompt_tokens_estimate": 7, "tries": [Try("i", 0)], "outcome": "done",
        "prompt_tokens": 10, "cached_tokens": 4, "output_tokens": 5,
    }  # fmt: skip
    return Decision(**{**values, **changes})  # type: ignore[arg-type]


def test_counts_by_key_and_model() -> None:
    table = UsageTable()
    for _ in range(2):
        table.add(decision(), 3)
    table.add(decision(outcome="client_left", prompt_tokens=None, cached_tokens=None, output_tokens=2), 3)
    table.add(decision(outcome="failed", prompt_tokens=None, cached_tokens=None, output_tokens=None), 4)
    assert table.pending() == table.take() == [
        UsageRow(day=3, tenant="acme", key="key-1", model="m", requests=3, failed=1, prompt_tokens=27, cached_tokens=8,
                 output_tokens=12),
        UsageRow(day=4, tenant="acme", key="key-1", model="m", requests=1, failed=1),
    ]  # fmt: skip
    assert table.take() == []


def test_a_clients_words_are_never_names() -> None:
    """A refused request's model is whatever its client wrote."""
    table = UsageTable()
    for number in range(1000):
        table.add(decision(model=f"made-up-{number}", tries=[], outcome="refused", reason="model_not_found"), 3)
    assert table.take() == [UsageRow(day=3, tenant="acme", key="key-1", model="", requests=1000, refused=1000)]
    rows = {family.name: family.rows for family in table.families()}
    assert rows["isochrone_tenant_refusals_total"] == [(("acme", "model_not_found"), 1000)]
    assert rows["isochrone_tenant_requests_total"] == []


def test_what_a_store_does_not_take_is_kept() -> None:
    table = UsageTable()
    table.add(decision(), 3)
    rows = table.take()
    table.add(decision(), 3)
    table.give_back(rows)
    (row,) = table.take()
    assert (row.requests, row.output_tokens) == (2, 10)


def test_rows_and_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "ROWS_MAX", 3)
    monkeypatch.setattr(usage, "PAIRS_MAX", 2)
    table = UsageTable()
    for number in range(10):
        table.add(decision(key=f"key-{number}", model=f"m{number}"), 3)
    rows = table.take()
    assert len(rows) == 4
    assert (rows[-1].key, rows[-1].model, rows[-1].requests) == ("other", "other", 7)
    assert sum(row.requests for row in rows) == 10
    counted = {family.name: dict(family.rows) for family in table.families()}["isochrone_tenant_requests_total"]
    assert counted == {("acme", "m0"): 1, ("acme", "m1"): 1, ("other", "other"): 8}


def test_tenants_are_bounded_labels() -> None:
    table = UsageTable()
    for number in range(usage.TENANTS_MAX + 5):
        table.add(decision(tenant=f"t{number}"), 3)
    counted = {family.name: dict(family.rows) for family in table.families()}["isochrone_tenant_requests_total"]
    assert len(counted) == usage.TENANTS_MAX + 1
    assert counted["other", "m"] == 5
