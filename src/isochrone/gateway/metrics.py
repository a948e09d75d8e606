"""`GET /metrics` of the admin port: families of the core and of the gateway as Prometheus text.

Rendering costs some 4 us a line, and 300 instances have 20,000 lines. It is done in slices of a millisecond or two,
with the event loop let go in between, so that a large cluster's scrape does not hold up streams.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from isochrone.observe.families import Family
from isochrone.observe.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ROWS_MAX = 400
"""Rows rendered in one go; a histogram counts for one row a bucket."""

Source = Callable[[], Iterable[Family]]


class Metrics:
    """All sources of families, rendered when asked for."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def add(self, source: Source) -> None:
        """Read these families too."""
        self._sources.append(source)

    def families(self) -> list[Family]:
        """Every family, now."""
        return [family for source in self._sources for family in source()]

    async def render(self) -> bytes:
        """The whole text."""
        parts = [generate_latest(self._process)]
        for family in self.families():
            for part in slices(family):
                parts.append(part)
                await asyncio.sleep(0)
        return b"".join(parts)


class _One(Collector):
    """A registry's view of one family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def slices(family: Family) -> Iterator[bytes]:
    """One family as text, piece by piece; the head stands in the first."""
    first = family.rows[0][1] if family.rows else None
    size = max(1, ROWS_MAX // len(first.counts)) if isinstance(first, Histogram) else ROWS_MAX
    yield render(replace(family, rows=family.rows[:size]))
    for start in range(size, len(family.rows), size):
        text = render(replace(family, rows=family.rows[start : start + size]))
        _, _, rows = text.split(b"\n", 2)  # without HELP and TYPE
        yield rows


def render(family: Family) -> bytes:
    """One family as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_One(metric_of(family)))
    return generate_latest(registry)


def metric_of(family: Family) -> Metric:
    """One family as prometheus_client knows it."""
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in family.rows:
            assert isinstance(value, Histogram)
            histogram.add_metric(labels, value.cumulative(), value.sum)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, value in family.rows:
        assert not isinstance(value, Histogram)
        metric.add_metric(labels, value)
    return metric
