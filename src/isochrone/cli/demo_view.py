"""How the demo shows itself: progress on stderr, a table or one JSON object on stdout."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Self

from rich import progress as rich_progress
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from isochrone.loadgen.report import Figures, Objective

COLUMNS = (
    ("TTFT p50", "ttft_p50_s", "low"),
    ("TTFT p99", "ttft_p99_s", "low"),
    ("TPOT p99", "tpot_p99_s", "low"),
    ("E2E p99", "e2e_p99_s", "low"),
    ("goodput", "goodput_ratio", "high"),
    ("served", "served_ratio", "high"),
    ("cache hits", "cache_hit_ratio", "high"),
)
"""Title, field of Figures, which end is good."""


class Progress:
    """A bar on a terminal; elsewhere one line per run."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console = console
        self._runs = runs
        self._finished = 0
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description:<28}"),
            rich_progress.BarColumn(),
            rich_progress.TaskProgressColumn(),
            rich_progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=2,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, requests: int) -> None:
        """How many requests there are in all runs."""
        self._bar.update(self._task, total=requests)

    def run(self, policy: str, number: int) -> None:
        """A run begins."""
        self._bar.update(self._task, description=f"round {number}: {policy}")

    def step(self) -> None:
        """One request is over."""
        self._bar.advance(self._task)

    def done(self, policy: str, number: int, made: Figures) -> None:
        """A run is over."""
        self._finished += 1
        self._console.print(
            f"{self._finished:>2}/{self._runs} round {number} {policy:<15} TTFT p99 {seconds_text(made.ttft_p99_s)}, "
            f"E2E p99 {seconds_text(made.e2e_p99_s)}, goodput {made.goodput_ratio:.1%}",
            highlight=False,
        )


def table(
    medians: Mapping[str, Figures], objectives: Mapping[str, Objective], charged_s: float, lag_p99_s: float
) -> Group:
    """Policies as rows; the best of a column is bold."""
    shown = Table(title="Medians over rounds; latency from the intended send time, at the client", title_justify="left")
    shown.add_column("policy")
    for title, *_ in COLUMNS:
        shown.add_column(title, justify="right")
    shown.add_column("requests per instance", justify="right")
    instances = sorted({name for row in medians.values() for name in row.requests_per_instance})
    for policy, row in medians.items():
        cells = [_cell(field, good, row, medians.values()) for _, field, good in COLUMNS]
        counts = " ".join(f"{row.requests_per_instance.get(name, 0):.0f}" for name in instances)
        shown.add_row(policy, *cells, counts)
    return Group(shown, Text(_footnote(medians, objectives, charged_s, lag_p99_s)))


def _cell(field: str, good: str, row: Figures, rows: Iterable[Figures]) -> str:
    best = (min if good == "low" else max)(shown_as(field, each) for each in rows)
    text = text_of(field, row)
    return f"[bold]{text}[/bold]" if shown_as(field, row) == best else text


def _footnote(
    medians: Mapping[str, Figures], objectives: Mapping[str, Objective], charged_s: float, lag_p99_s: float
) -> str:
    bounds = ", ".join(f"{name} {each.ttft_s:g} s, {each.tpot_s * 1e3:g} ms" for name, each in objectives.items())
    requests = next(iter(medians.values())).requests
    lines = [
        f"Goodput: share of all offered requests inside both objectives, TTFT and TPOT ({bounds}).",
        "Requests per instance from engine-1 on; the steps of the last one take 2.5 times as long.",
        f"TPOT is over served requests; elsewhere one that failed counts as {charged_s:g} s and as a miss.",
        f"{requests:.0f} requests counted in a run; the client's event loop ran {lag_p99_s * 1e3:.1f} ms late at p99.",
    ]
    for policy, row in medians.items():
        if failed := ", ".join(f"{count:.0f} {kind}" for kind, count in row.errors.items() if count >= 1):
            lines.append(f"Failed under {policy} (median of rounds): {failed}.")
    return "\n".join(lines)


def as_json(
    medians: Mapping[str, Figures], runs: Mapping[str, Sequence[Figures]], settings: Mapping[str, object]
) -> dict[str, object]:
    """One object: medians by policy, every round behind them, and how they were made."""
    return {
        "policies": {policy: asdict(row) for policy, row in medians.items()},
        "rounds": {policy: [asdict(row) for row in rows] for policy, rows in runs.items()},
        "settings": dict(settings),
    }


def seconds_text(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def text_of(field: str, row: Figures) -> str:
    """A figure with its unit."""
    value: float = getattr(row, field)
    return f"{value:.1%}" if field.endswith("_ratio") else seconds_text(value)


def shown_as(field: str, row: Figures) -> float:
    """A figure as precise as it is shown, so that what looks equal is equally bold."""
    value: float = getattr(row, field)
    return round(value, 3 if field.endswith("_ratio") or value < 1 else 2)
