"""What `isochrone simulate` shows on the terminal. 80 columns are enough: long names of policies are folded."""

from collections.abc import Mapping, Sequence
from textwrap import fill

from rich.console import Console
from rich.table import Table

from isochrone.simulator import results
from isochrone.simulator.sweep import Result

SHOWN = {
    "good-\nput": "goodput_ratio",
    "\nserved": "served_ratio",
    "TTFT\np50 s": "ttft_p50_s",
    "TTFT\np99 s": "ttft_p99_s",
    "TPOT\np99 s": "tpot_p99_s",
    "E2E\np99 s": "e2e_p99_s",
    "cache\nhits": "hit_ratio",
}
"""Columns of the table."""
COMPARED = {
    "goodput": "goodput_ratio",
    "token goodput": "token_goodput_ratio",
    "TTFT p99 s": "ttft_p99_s",
    "E2E p99 s": "e2e_p99_s",
}
"""Columns of the differences."""
FIGURES, DIFFERENCES = 46, 57
"""Columns of a terminal that the numbers of each table take. A name that is longer than the rest is folded."""
NAME_MIN = 20
SERVED_MIN = 0.999
"""Of both arms, for a difference of latencies to mean anything: who refuses the worst requests has none slow."""


def show(found: Sequence[Result], arms: Sequence[str], console: Console) -> None:
    """A table for each point, with several seeds also one of the differences, then the notes."""
    for (rate_scale, instances), by_arm in results.by_point(found).items():
        ordered = {arm: by_arm[arm] for arm in arms if arm in by_arm}
        console.print(_figures(f"rate x{rate_scale:g}, {instances} instances", ordered, console.width - FIGURES))
        leader = results.leader(ordered)
        if len(ordered) > 1 and len(ordered[leader]) > 1:
            console.print()
            console.print(_differences(leader, ordered, console.width - DIFFERENCES))
        console.print()
    for note in results.notes(found):
        console.print(f"- {note}", style="dim", highlight=False)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("\npolicy" if any("\n" in column for column in columns) else "policy", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _figures(title: str, by_arm: Mapping[str, Sequence[Result]], name_max: int) -> Table:
    table = _table(title, list(SHOWN))
    for arm, some in by_arm.items():
        summary = results.summary(some)
        table.add_row(fill(arm, max(name_max, NAME_MIN)), *(_short(summary[name]) for name in SHOWN.values()))
    return table


def _differences(leader: str, by_arm: Mapping[str, Sequence[Result]], name_max: int) -> Table:
    """Bold where the interval leaves out zero."""
    title = f"{leader} minus each: mean of {len(by_arm[leader])} pairs, and half the 95 % interval"
    table = _table(title, list(COMPARED))
    for arm, some in by_arm.items():
        if arm == leader:
            continue
        gaps = results.compared(by_arm[leader], some)
        whole = min(_served(some), _served(by_arm[leader])) >= SERVED_MIN
        cells = [_gap(gaps.get(name)) if whole or name.endswith("ratio") else "-" for name in COMPARED.values()]
        table.add_row(fill(arm, max(name_max, NAME_MIN)), *cells)
    return table


def _served(some: Sequence[Result]) -> float:
    return min(result.figures["served_ratio"] or 0.0 for result in some)


def _gap(gap: results.Gap | None) -> str:
    if gap is None:
        return "-"
    difference, interval = gap["difference"], gap["interval"]
    if difference is None or interval is None:
        return "-"
    text = f"{difference:+.3f} ±{interval:.3f}"
    return f"[bold]{text}[/bold]" if abs(difference) > interval else text


def _short(value: object) -> str:
    """Six characters at most up to a million."""
    if not isinstance(value, float):
        return "-"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}" if abs(value) < 10_000 else f"{value:.0f}"
