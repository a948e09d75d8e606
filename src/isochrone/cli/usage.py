"""`isochrone usage`: who used how much, from the store of a gateway that runs or does not."""

import csv
import sys
import time
from typing import Any

import click
import msgspec

from isochrone.cli.keys import plan_of, stored_at, with_store
from isochrone.gateway.usage import COLUMNS, UsageQuery
from isochrone.observe.usage import COUNTS


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--first", metavar="DATE", help="First day, UTC (30 days back).")
@click.option("--last", metavar="DATE", help="Last day, UTC (today).")
@click.option("--by", metavar="COLUMNS", help=f"What to tell apart, of {','.join(COLUMNS)} (all of them).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated, with a line of names.")
@stored_at
def command(as_json: bool, as_csv: bool, store: str | None, config: str | None, **asked: Any) -> None:
    """Requests and tokens by day, tenant, key and model.

    \b
      isochrone usage --store keys.db --by tenant,model
      isochrone usage --store keys.db --first 2026-01-01 --last 2026-01-31 --csv > january.csv
    A gateway that runs writes what was used every few seconds (keys.flush_s).
    """
    if as_json and as_csv:
        raise click.UsageError("Give --json or --csv, not both.")
    try:
        query = UsageQuery.read({name: text for name, text in asked.items() if text}, time.time())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    found = with_store(plan_of(store, config), lambda rows: rows.usage(query.first_day, query.last_day))
    rows = query.shown(found)
    names = (*query.by, *COUNTS)
    if as_json:
        for row in rows:
            click.echo(msgspec.json.encode(row))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: safe(cell) for name, cell in row.items()} for row in rows)
    else:
        lines = [names, *(tuple(str(row[name]) for name in names) for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
        for line in lines:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def safe(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@") else cell
