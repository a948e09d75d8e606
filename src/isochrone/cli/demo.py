"""`isochrone demo`: policies side by side on four emulated engines, over real HTTP, on one replayed workload."""

import asyncio
import gc
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import uvloop
from rich.console import Console

from isochrone.cli import rig
from isochrone.cli.demo_view import Progress, as_json, table
from isochrone.cli.plugins import load_policies
from isochrone.config.problems import nearest
from isochrone.loadgen.client import Client
from isochrone.loadgen.drive import replay
from isochrone.loadgen.lag import LagWatch
from isochrone.loadgen.report import Figures, Objective, figures, median
from isochrone.loadgen.workload import CHAT, DOCUMENT, EXTRACTION, Workload, workload
from isochrone.scheduling.policies import exists as is_policy
from isochrone.scheduling.policies import names as known_policies

POLICIES = ("round-robin", "least-request", "estimated-time", "equal-cost")
PROFILE = "a100-80g-27b-bf16"
"""50 ms a step: some 20 tokens/s a stream, so that two cores carry engines, gateway and client together."""
ENGINES = rig.Engines(PROFILE, count=4, slow=("3:2.5",), extra=("--mean-output", "1"))
MODEL = "emulated"
OBJECTIVES = {
    CHAT: Objective(ttft_s=2.0, tpot_s=0.15),
    DOCUMENT: Objective(ttft_s=4.0, tpot_s=0.15),
    EXTRACTION: Objective(ttft_s=2.0, tpot_s=0.15),
}
"""What counts as good. Only the report knows them: the gateway is told no objective and sheds nothing."""
CALL_S_MAX = 20.0
"""The client's limit for a whole call; a failed call is charged this much."""
WARM_HELP = "Seconds before the measured ones: caches fill, the gateway learns."
TABLE_COLUMNS = 120
"""Width of the table in a file or pipe; on a terminal it is the terminal's."""
LAG_S_MAX = 0.020
"""Lateness of the client's event loop at p99 beyond which the machine is too busy to judge."""
TOO_BUSY = 3
"""Exit status: the figures would be the machine's, not the policies'."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    policies: tuple[str, ...]
    rounds: int
    seconds: float
    warm_s: float
    seed: int
    rate_scale: float

    def order(self, number: int) -> Sequence[str]:
        """Policies of one round: each round begins with another, so that none always comes first."""
        first = number % len(self.policies)
        return self.policies[first:] + self.policies[:first]


class TooBusy(Exception):
    """The loop of the client ran late; the text says how late."""


async def run_once(policy: str, load: Workload, logs: Path, lag: LagWatch, ended: Callable[[], None]) -> Figures:
    """One policy on fresh engines behind a fresh gateway: nobody inherits a cache or a lesson."""
    async with (
        rig.engines(ENGINES, logs) as urls,
        rig.gateway(urls, policy, logs) as port,
        Client("127.0.0.1", port, whole_s=CALL_S_MAX) as client,
    ):
        gc.collect()
        gc.freeze()
        lag.start()
        try:
            results = await replay(client, load, ended)
        finally:
            lag.stop()
    return figures(results, OBJECTIVES, CALL_S_MAX)


async def compare(plan: Plan, progress: Progress) -> tuple[dict[str, list[Figures]], float]:
    """All rounds; returns the figures of each policy's rounds and the loop's p99 lag in seconds."""
    load = workload(plan.seed, MODEL, warm_s=plan.warm_s, seconds=plan.seconds, rate_scale=plan.rate_scale)
    requests = sum(len(session) for session in load.sessions)
    progress.begin(requests * plan.rounds * len(plan.policies))
    runs: dict[str, list[Figures]] = {policy: [] for policy in plan.policies}
    lag = LagWatch()
    with tempfile.TemporaryDirectory(prefix="isochrone-demo-") as folder:
        for number in range(plan.rounds):
            for policy in plan.order(number):
                progress.run(policy, number + 1)
                made = await run_once(policy, load, Path(folder), lag, progress.step)
                runs[policy].append(made)
                progress.done(policy, number + 1, made)
            if lag.p99_s > LAG_S_MAX:
                raise TooBusy(
                    f"this machine is too busy to judge: the client's event loop ran {lag.p99_s * 1e3:.0f} ms late at "
                    f"p99, the limit is {LAG_S_MAX * 1e3:.0f} ms. Stop other work, or give it more cores."
                )
    return runs, lag.p99_s


async def _with_signals(plan: Plan, progress: Progress) -> tuple[dict[str, list[Figures]], float]:
    """SIGTERM ends the demo as Ctrl-C does: by unwinding, so that every child process is stopped."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    return await compare(plan, progress)


def settings(plan: Plan, lag_p99_s: float) -> dict[str, object]:
    """How the figures were made: enough to make them again."""
    return {
        **asdict(plan),
        "engines": asdict(ENGINES),
        "objectives": {route: asdict(objective) for route, objective in OBJECTIVES.items()},
        "failed_request_charged_s": CALL_S_MAX,
        "client_loop_lag_p99_s": lag_p99_s,
    }


def _policies(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise click.BadParameter("name at least one policy")
    load_policies()
    for name in names:
        if not is_policy(name):
            raise click.BadParameter(f"no policy is called {name!r}; {nearest(name, known_policies())}")
    return names


@click.command()
@click.option("--seconds", default=15.0, show_default=True, type=click.FloatRange(1, 3600), help="Measured in a run.")
@click.option("--warm", "warm_s", default=5.0, show_default=True, type=click.FloatRange(0, 600), help=WARM_HELP)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100), help="Runs of each policy.")
@click.option(
    "--policies",
    default=",".join(POLICIES),
    show_default=True,
    callback=_policies,
    metavar="NAMES",
    help="Commas between.",
)
@click.option("--seed", default=1, show_default=True, help="Seed of the workload.")
@click.option("--rate-scale", default=1.0, show_default=True, type=click.FloatRange(0.01, 10), help="Times all rates.")
@click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")
def command(
    seconds: float, warm_s: float, rounds: int, policies: tuple[str, ...], seed: int, rate_scale: float, as_object: bool
) -> None:
    """Compare scheduling policies on four emulated engines, one of them 2.5 times slower than the others.

    Every policy gets the same requests (chat, long documents, extraction) at the same times, through a fresh gateway in
    front of fresh engines. Latency counts from when a request should have been sent. Exit status 3: this machine was
    too busy for the figures to mean anything.
    """
    plan = Plan(policies, rounds, seconds, warm_s, seed, rate_scale)
    progress = Progress(Console(stderr=True), len(policies) * rounds)
    try:
        with progress:
            runs, lag_p99_s = uvloop.run(_with_signals(plan, progress))
    except TooBusy as busy:
        click.echo(str(busy), err=True)
        sys.exit(TOO_BUSY)
    except rig.RigError as broken:
        raise click.ClickException(str(broken)) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("stopped; all child processes are gone", err=True)
        sys.exit(130)
    medians = {policy: median(rows) for policy, rows in runs.items()}
    if as_object:
        click.echo(json.dumps(as_json(medians, runs, settings(plan, lag_p99_s))))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = TABLE_COLUMNS
        console.print(table(medians, OBJECTIVES, CALL_S_MAX, lag_p99_s))
