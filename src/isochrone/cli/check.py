"""`isochrone check`: a configuration file is looked at and nothing is started.

Exit codes: 0 where a gateway could start with it, 1 where it could not.
"""

import sys
from pathlib import Path

import click

from isochrone.cli.plugins import load_policies
from isochrone.config.build import Configuration
from isochrone.config.loader import load
from isochrone.config.problems import ConfigError
from isochrone.gateway.reload import check


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", metavar="CONFIG")
def command(config: str) -> None:
    """Look at a configuration file as `isochrone serve` would: keys, values, secrets, certificates.

    \b
      isochrone check isochrone.yaml && kill -HUP $(pgrep -f "isochrone serve")
    """
    load_policies()
    try:
        configuration = load(Path(config))
        check(configuration)
    except ConfigError as error:
        click.echo("\n".join(error.problems), err=True)
        sys.exit(1)
    click.echo(f"{config}: {in_short(configuration)}")


def in_short(configuration: Configuration) -> str:
    """One line."""
    file = configuration.file
    keys = "keys on" if configuration.access.keys else "no keys"
    return (
        f"{len(configuration.instances)} instances, {file.policy}, {len(file.models.aliases)} aliases, "
        f"{len(file.tenants)} tenants, {keys}"
    )
