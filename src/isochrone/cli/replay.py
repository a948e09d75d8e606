"""`isochrone replay`: one seed of the fault tests again."""

import sys

import click

from isochrone.simulator.swarm import Broken, draw, run_seed


@click.command()
@click.option("--seed", required=True, type=click.IntRange(min=0), help="The seed that a failing test printed.")
@click.option("--events", is_flag=True, help="Print every event and command.")
def command(seed: int, events: bool) -> None:
    """Run one seed of the fault swarm again and check its invariants.

    The same seed gives the same events and the same commands.
    """
    plan, workload = draw(seed)
    click.echo(f"policy {plan.settings.policy}, {len(plan.fleet.members)} instances, {len(workload.calls)} calls")
    for fault in plan.faults:
        click.echo(f"  {fault}")
    try:
        run = run_seed(seed, click.echo if events else None)
    except Broken as broken:
        click.echo(f"broken: {broken}", err=True)
        sys.exit(1)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(run.tally.outcomes.items()))
    click.echo(f"all invariants hold; {outcomes}; {run.virtual_s:.1f} s of virtual time")
