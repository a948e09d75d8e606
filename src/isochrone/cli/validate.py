"""`isochrone validate`: the simulator against measurements from elsewhere."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from isochrone.cli import validate_emulator, validate_engine
from isochrone.config.problems import nearest
from isochrone.simulator.belief.checks import CHECKS, run
from isochrone.simulator.belief.finding import Check, Data, Finding, Row, Verdict

ENVIRONMENT = "ISOCHRONE_TRACES"
COLUMNS_MIN = 140
"""Width of the tables where output is no terminal."""


def cell(value: float | None, unit: str = "") -> str:
    """A number to four digits, with its unit."""
    return "" if value is None else f"{value:.4g} {unit}".strip()


def _error(row: Row) -> str:
    if row.error is None:
        return ""
    return f"{row.error:+.1%}" if row.many == 1 else f"{abs(row.error):.1%}"


def rows_table(finding: Finding) -> Table:
    """Published beside ours."""
    table = Table(title=f"{finding.name}: {finding.title}", title_justify="left")
    for name in ("", "published", "ours", "error", "verdict"):
        table.add_column(name, justify="left" if name in ("", "verdict") else "right", overflow="fold")
    for row in finding.rows:
        table.add_row(row.what, cell(row.published, row.unit), cell(row.ours, row.unit), _error(row), str(row.verdict))
    return table


def summary_table(findings: Sequence[Finding]) -> Table:
    """One line a check."""
    table = Table(title="checks", title_justify="left")
    for name in ("check", "verdict", "what came out", "bar", "s"):
        table.add_column(name, justify="right" if name == "s" else "left", overflow="fold")
    for one in findings:
        table.add_row(one.name, str(one.verdict), one.headline, one.bar, f"{one.wall_s:.1f}")
    return table


def show(finding: Finding, console: Console) -> None:
    """A check's table, and how it was made."""
    if finding.rows:
        console.print(rows_table(finding))
    if finding.verdict is not Verdict.NO_DATA:
        console.print(f"source: {finding.source}", markup=False, highlight=False)
        console.print(f"fitted: {finding.fitted}", markup=False, highlight=False)
    for note in finding.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    console.print(f"{finding.name}: {finding.verdict}. {finding.headline}\n", markup=False, highlight=False)


def chosen(names: Sequence[str], checks: Sequence[Check]) -> list[Check]:
    """The named checks in their own order; all where none is named."""
    wanted = {one for name in names for one in name.split(",")}
    known = [check.name for check in checks]
    for name in wanted:
        if name not in known:
            raise click.BadParameter(f"there is no check {name!r}; {nearest(name, known)}", param_hint="--only")
    return [check for check in checks if not wanted or check.name in wanted]


@click.command()
@click.option(
    "--traces", required=True, envvar=ENVIRONMENT, type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the public data; read in place.", show_envvar=True,
)  # fmt: skip
@click.option("--only", multiple=True, metavar="NAME", help="Only this check; repeatable, or with commas.")
@click.option("--engine", metavar="URL", help="Also check the engine that runs there (vLLM: `isochrone up`); minutes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(traces: Path, only: tuple[str, ...], engine: str | None, as_json: bool) -> None:
    """Check the simulator against measurements that others have published.

    Prints what was published beside what comes out here. A check that misses its bar says so; the exit status is 0 all
    the same, for the command has done what it was asked. Data that are absent are named.

    \b
      isochrone validate --traces traces                           all but a real engine, some four minutes
      isochrone validate --traces traces --only step-times,mooncake
      isochrone validate --traces traces --only engine --engine http://127.0.0.1:9001
    """
    checks = [*CHECKS, validate_emulator.CHECK]
    if engine is not None:
        checks.append(validate_engine.check(engine))
    console, findings = Console(), []
    if not console.is_terminal:
        console.width = max(console.width, COLUMNS_MIN)
    for check in chosen(only, checks):
        finding = run(check, Data(traces))
        findings.append(finding)
        if not as_json:
            show(finding, console)
    if as_json:
        click.echo(msgspec.json.encode({"checks": {one.name: dataclasses.asdict(one) for one in findings}}))
    else:
        console.print(summary_table(findings))
