"""`isochrone serve`: the gateway in front of engines that are already up.

Exit codes: 0 after a clean stop, 1 when it could not start, 2 for flags or a configuration that make no sense.
"""

import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import uvloop

from isochrone.cli import serve_relays
from isochrone.cli.plugins import load_policies
from isochrone.cli.serving import serve
from isochrone.config.build import Configuration
from isochrone.config.loader import load
from isochrone.config.problems import ConfigError
from isochrone.gateway.service import StartError
from isochrone.scheduling import policies
from isochrone.scheduling.parts import PARTS


def instance_entry(text: str) -> dict[str, Any]:
    """`URL,class=h100,weight=2,slots=256` as an entry of the configuration's `instances`."""
    url, *pairs = text.split(",")
    entry: dict[str, Any] = {"url": url}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} in {text!r}: expected key=value", param_hint="--instance")
        entry[key.strip()] = tuple(value.split("+")) if key.strip() == "models" else value
    return entry


def overrides(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, in the shape of the configuration file."""
    found: dict[str, Any] = {}
    for flag, (group, key) in PLACES.items():
        value = flags[flag]
        if value is None:
            continue
        if group:
            found.setdefault(group, {})[key] = value
        else:
            found[key] = value
    if flags["no_hold"]:
        found["hold"] = False
    if flags["no_resume"]:
        found["resume"] = False
    if flags["without"]:
        found["without"] = flags["without"]
    if flags["instances"]:
        found["instances"] = [instance_entry(text) for text in flags["instances"]]
    slo = {"ttft_s": flags["slo_ttft"], "tpot_s": flags["slo_tpot"], "sheddable": flags["sheddable"] or None}
    slo = {key: value for key, value in slo.items() if value is not None}
    if slo:
        found["slo"] = {"default": slo}
    return found


PLACES = {
    "policy": ("", "policy"),
    "shadow": ("", "shadow"),
    "seed": ("", "seed"),
    "inject": ("", "inject"),
    "access_log": ("", "access_log"),
    "warm_start": ("", "warm_start"),
    "host": ("listen", "host"),
    "port": ("listen", "port"),
    "admin_host": ("admin", "host"),
    "admin_port": ("admin", "port"),
    "workers": ("workers", "count"),
}
"""Flag -> group and key of the configuration file."""


def configured(config: str | None, flags: Mapping[str, Any]) -> Configuration:
    """File and flags together; click's UsageError for what makes no sense."""
    try:
        configuration = load(Path(config) if config else None, overrides(flags))
    except ConfigError as error:
        raise click.UsageError("\n".join(error.problems)) from None
    if not configuration.instances and not config:
        raise click.UsageError("Give at least one --instance URL, or a --config FILE.")
    return configuration


def read_again(config: str | None, flags: Mapping[str, Any], text: str | None = None) -> Configuration:
    """The file as it is now, or as another process has read it (`text`), with the flags of the start. Raises
    ConfigError."""
    if config is None:
        raise ConfigError(["the gateway was started without a configuration file"])
    return load(Path(config), overrides(flags), text=text)


PLACED = (
    f"How requests are placed: {', '.join(policies.names(peers=False))}; or as another gateway does "
    "(docs/reference/policies.md)."
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--instance",
    "instances",
    multiple=True,
    metavar="URL[,KEY=VALUE...]",
    help="An engine; repeat for each. Keys: id, class, weight, slots, engine, models (a+b), max_model_len, "
    "cost_per_hour, credentials ($NAME or file:PATH).",
)
@click.option("--config", metavar="FILE", help="Configuration file (YAML); flags override it.")
@click.option("--policy", metavar="NAME", help=PLACED)
@click.option("--shadow", metavar="NAME", help="A second policy that decides and records, and never acts.")
@click.option("--no-hold", is_flag=True, help="Dispatch at once: no late binding.")
@click.option(
    "--without", multiple=True, metavar="PART", help=f"Leave a part of the scheduler out: {', '.join(sorted(PARTS))}."
)
@click.option("--no-resume", is_flag=True, help="A stream that loses its instance ends with an error.")
@click.option("--host", help="Address for clients (127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port for clients (8080).")
@click.option("--admin-host", help="Address of the admin API and /metrics (127.0.0.1).")
@click.option("--admin-port", type=click.IntRange(0, 65535), help="Their port (8081).")
@click.option(
    "--workers", type=click.IntRange(1, 64), help="Relay processes beside the one that decides (1: one process in all)."
)
@click.option("--inject", type=click.Choice(["usage", "none"]), help="Fields spliced into bodies (usage).")
@click.option("--access-log", metavar="PATH", help="JSON lines to a file, `-` for standard output, `off` (off).")
@click.option("--warm-start", metavar="FILE", help="Keep what was learnt over restarts.")
@click.option("--slo-ttft", type=float, metavar="S", help="Objective: seconds to the first token.")
@click.option("--slo-tpot", type=float, metavar="S", help="Objective: seconds between tokens.")
@click.option("--sheddable", is_flag=True, help="Refuse with 503 what can no longer meet --slo-ttft.")
@click.option("--seed", type=int, help="Seed for breaking ties (0).")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What goes to standard error.",
)
def command(config: str | None, log_level: str, **flags: Any) -> None:
    """Run the gateway in front of engines that are already up.

    \b
      isochrone serve --instance http://127.0.0.1:9001 --instance http://127.0.0.1:9002,class=h100,weight=2
      curl http://127.0.0.1:8080/v1/models
      curl http://127.0.0.1:8081/admin/instances
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    load_policies()
    configuration = configured(config, flags)
    if flags["sheddable"] and (configuration.settings.slo is None or configuration.settings.slo.ttft_s is None):
        raise click.UsageError("--sheddable needs --slo-ttft: it says when a request is refused.")
    file, source = Path(config) if config else None, partial(read_again, config, flags)
    try:
        if configuration.file.workers.count > 1:
            sys.exit(serve_relays.run(configuration, file, source))
        uvloop.run(serve(configuration, file, source))
    except StartError as error:
        raise click.ClickException(str(error)) from None
