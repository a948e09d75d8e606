"""From the samples of one metric to one number, and a note of what was looked for and not found."""

from collections.abc import Callable, Sequence

from isochrone.adapters.engine.exposition import BadScrape, Sample, samples

Fold = Callable[[Sequence[Sample]], float]


def total(found: Sequence[Sample]) -> float:
    """Sum over label sets: data parallel ranks and models share one endpoint."""
    return sum(sample.value for sample in found)


def mean(found: Sequence[Sample]) -> float:
    """Mean over label sets: ranks are alike, so that each weighs the same."""
    return sum(sample.value for sample in found) / len(found)


class Reader:
    """Reads metrics of one scrape by their names, newest name first, and remembers which are missing."""

    __slots__ = ("_text", "missing")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.missing: list[str] = []

    def samples(self, *names: str) -> Sequence[Sample]:
        """Samples of the first of the names that the engine knows; none of them: all are noted as missing."""
        for name in names:
            found = samples(self._text, name)
            if found:
                return found
        self.missing.extend(names)
        return ()

    def number(self, fold: Fold, *names: str) -> float | None:
        """One number >= 0 out of all label sets, None where missing. Missing is never zero."""
        found = self.samples(*names)
        if not found:
            return None
        value = fold(found)
        if value < 0:
            raise BadScrape(f"{names[0]} is {value}")
        return value

    def count(self, fold: Fold, *names: str) -> int | None:
        """`number`, rounded."""
        value = self.number(fold, *names)
        return None if value is None else round(value)

    def ratio(self, *names: str) -> float | None:
        """A mean share of 0..1. Names with `_perc` are shares too: vLLM's are never percent."""
        value = self.number(mean, *names)
        if value is not None and value > 1.01:
            raise BadScrape(f"{names[0]} is {value}, and should be between 0 and 1")
        return None if value is None else min(value, 1.0)
