"""What `isochrone simulate` shows on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from isochrone.simulator import results
from isochrone.simulator.sweep import Result

SHOWN = {
    "goodput": "goodput_ratio",
    "served": "served_ratio",
    "TTFT p50": "ttft_p50_s",
    "TTFT p99": "ttft_p99_s",
    "TPOT p99": "tpot_p99_s",
    "E2E p99": "e2e_p99_s",
    "hits": "hit_ratio",
}
"""Columns of the table on the terminal."""


def show(found: Sequence[Result], arms: Sequence[str], console: Console) -> None:
    """A table for each point."""
    for (rate_scale, instances), by_arm in results.by_point(found).items():
        table = Table(
            title=f"rate x{rate_scale:g}, {instances} instances", title_justify="left", box=None, padding=(0, 1, 0, 0)
        )
        table.add_column("policy", no_wrap=True)
        for name in SHOWN:
            table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
        for arm in arms:
            if arm in by_arm:
                summary = results.summary(by_arm[arm])
                values = [summary[name] for name in SHOWN.values()]
                cells = [f"{value:.3f}" if isinstance(value, float) else "-" for value in values]
                table.add_row(arm, *cells)
        console.print(table)
