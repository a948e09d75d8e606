"""What a check of the simulator against data from elsewhere has found, as plain data for a table and for JSON."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


class Verdict(enum.StrEnum):
    """What became of a check, or of one of its rows."""

    HOLDS = "holds"
    MISSES = "misses"
    SHOWN = "shown"
    """Printed for comparison; no bar was set for it beforehand."""
    NO_DATA = "no data"
    NOT_RUN = "not run"

    @classmethod
    def of(cls, holds: bool) -> "Verdict":
        return cls.HOLDS if holds else cls.MISSES


@dataclass(frozen=True, slots=True)
class Row:
    """One published number beside ours."""

    what: str
    published: float | None
    ours: float | None
    unit: str
    error: float | None = None
    """Relative, as a share: 0.1 is 10 %."""
    verdict: Verdict = Verdict.SHOWN
    many: int = 1
    """How many measurements the row sums up: then numbers are medians, and the error is that of the absolute errors."""


def compared(what: str, published: float, ours: float, unit: str, verdict: Verdict = Verdict.SHOWN) -> Row:
    """A row whose error is ours / published - 1. Numbers of numpy become plain ones, for JSON."""
    published, ours = float(published), float(ours)
    return Row(what, published, ours, unit, ours / published - 1 if published else None, verdict)


@dataclass(slots=True)
class Finding:
    """One check: what was asked, what was fitted, what came out."""

    name: str
    title: str
    source: str
    """Where the data come from."""
    bar: str
    """What has to hold, set before looking."""
    fitted: str
    """What was fitted to the data that the check reports on, and on which part of it. `nothing` where nothing was."""
    verdict: Verdict = Verdict.NOT_RUN
    headline: str = ""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wall_s: float = 0.0


class NoData(Exception):
    """A file that a check needs is absent; the text is its name."""


@dataclass(frozen=True, slots=True)
class Data:
    """The folder with data from elsewhere. Read in place, never written."""

    folder: Path

    def path(self, name: str) -> str:
        """Of a file that must be there."""
        found = self.folder / name
        if not found.is_file():
            raise NoData(str(found))
        return str(found)


@dataclass(frozen=True, slots=True)
class Check:
    """A check by its name."""

    name: str
    about: str
    run: Callable[[Data], Finding]
