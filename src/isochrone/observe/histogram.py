"""A histogram with fixed bucket bounds: one bisection and two additions an observation."""

from bisect import bisect_left

TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
TPOT_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
E2E_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0)
WAIT_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
ERROR_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Histogram:
    """Counts of values per bucket, and their sum. Bucket i holds values <= bounds[i]; the last one holds the rest."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Put one value in. About 0.15 us."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Values seen."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, values at or below it), in Prometheus' form, `+Inf` last."""
        rows: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            rows.append((repr(float(bound)), below))
        rows.append(("+Inf", below + self.counts[-1]))
        return rows
