"""Usage and quotas as people ask for them: by which days, summed up over what is not asked for, as plain rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Self

from isochrone.access.bucket import Bucket
from isochrone.access.quotas import Account
from isochrone.nouns.instant import Instant, seconds
from isochrone.observe.usage import COUNTS, UsageRow

COLUMNS = ("day", "tenant", "key", "model")
"""What usage can be told apart by."""
EPOCH = date(1970, 1, 1)
DAYS_SHOWN = 30
"""Days back from today where `first` does not say."""


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which days, and what to tell apart."""

    first_day: int
    last_day: int
    by: tuple[str, ...] = COLUMNS

    @classmethod
    def read(cls, asked: Mapping[str, str], wall_s: float) -> Self:
        """From `first`, `last` (dates, UTC) and `by` (column names). Raises ValueError that says what is wrong."""
        today = datetime.fromtimestamp(wall_s, UTC).date()
        first = _date("first", asked.get("first"), today - timedelta(days=DAYS_SHOWN - 1))
        last = _date("last", asked.get("last"), today)
        if last < first:
            raise ValueError(f"last = {last}: comes before first = {first}")
        text = asked.get("by") or ",".join(COLUMNS)
        by = tuple(name.strip() for name in text.split(","))
        if not set(by) <= set(COLUMNS):
            raise ValueError(f"by = {text[:60]!r}: expected some of {', '.join(COLUMNS)}")
        return cls((first - EPOCH).days, (last - EPOCH).days, tuple(name for name in COLUMNS if name in by))

    def shown(self, rows: Iterable[UsageRow]) -> list[dict[str, Any]]:
        """The rows with these columns and the sums of all counts, in the order of the columns."""
        sums: dict[tuple[str | int, ...], UsageRow] = {}
        for row in rows:
            place = tuple(getattr(row, name) for name in self.by)
            kept = sums.setdefault(place, UsageRow(day=row.day, tenant=row.tenant, key=row.key, model=row.model))
            kept.add(row)
        return [self._shown(sums[place]) for place in sorted(sums)]

    def _shown(self, row: UsageRow) -> dict[str, Any]:
        cells: dict[str, Any] = {name: getattr(row, name) for name in (*self.by, *COUNTS)}
        if "day" in cells:
            cells["day"] = (EPOCH + timedelta(days=row.day)).isoformat()
        return cells


def _date(name: str, text: str | None, otherwise: date) -> date:
    if not text:
        return otherwise
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} = {text[:60]!r}: expected a date like 2026-01-31") from None


def standing(account: Account, now: Instant) -> dict[str, Any]:
    """What a tenant may use, and what is left of it now."""
    tenant = account.tenant
    return {
        "tenant": tenant.name,
        "running_requests": account.running,
        "concurrent_requests": tenant.concurrent_requests,
        "reserved_tokens": account.reserved_tokens,
        "requests_per_minute": _left(account.requests, now),
        "tokens_per_minute": _left(account.tokens, now),
        "models": tenant.models,
        "priority": tenant.priority,
        "route": tenant.route,
    }


def _left(bucket: Bucket | None, now: Instant) -> dict[str, Any] | None:
    if bucket is None:
        return None
    bucket.refill(now)
    return {"limit": bucket.limit, "remaining": bucket.remaining, "reset_s": seconds(bucket.reset_ns())}
