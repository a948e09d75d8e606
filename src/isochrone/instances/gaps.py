"""What gaps between tokens an instance really gives, by the size of its batch.

A concurrency cap that trusts a wrong step model is the one dangerous part of admission: a model twice too pessimistic
costs a quarter of the throughput. So the cap may bind only from the batch on at which the *measured* median gap reaches
it (`floor`). Batches are told apart in bins that grow by a quarter; each keeps its median, followed in steps of 3 %.
"""

from bisect import bisect_right

EDGES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 19, 24, 30, 38, 48, 60, 75, 94, 118, 148, 185, 231, 289, 361, 451, 564, 705)
"""Least batch of each bin, in decoding requests."""
STEP = 1.03
SAMPLES_MIN = 8
"""A bin speaks once it has been seen this often."""


class Gaps:
    """Median gap by batch of one instance. About 0.4 us a sample."""

    __slots__ = ("_counts", "_medians")

    def __init__(self) -> None:
        self._medians = [0.0] * len(EDGES)
        self._counts = [0] * len(EDGES)

    def observe(self, batch: float, gap_s: float) -> None:
        """One window of a stream: its mean gap, while so many requests decoded."""
        place = bisect_right(EDGES, max(1.0, batch)) - 1
        count = self._counts[place]
        if count == 0:
            self._medians[place] = gap_s
        else:
            by = STEP if count >= SAMPLES_MIN else 1.0 + 4.0 * (STEP - 1.0)
            kept = self._medians[place]
            self._medians[place] = min(kept * by, gap_s) if gap_s > kept else max(kept / by, gap_s)
        self._counts[place] = count + 1

    def floor(self, gap_s: float) -> int:
        """The batch below which no cap may bind: where the measured median gap reaches `gap_s`; where it does not yet,
        the bin above the largest one that was seen, so that more is tried. 1 while nothing was measured."""
        floor = 1
        for place, edge in enumerate(EDGES):
            if self._counts[place] < SAMPLES_MIN:
                continue
            if self._medians[place] >= gap_s:
                return edge
            floor = EDGES[min(place + 1, len(EDGES) - 1)]
        return floor
