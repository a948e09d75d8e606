"""`isochrone replay`: one seed of the fault tests again."""

import sys

import click

from isochrone.simulator.invariants import Broken
from isochrone.simulator.plan import Run
from isochrone.simulator.story import Story, of_settings
from isochrone.simulator.swarm import Drawn, draw, watched

LAST_LINES = 30
"""Lines of the story before an invariant broke that are printed unasked."""


@click.command()
@click.option("--seed", required=True, type=click.IntRange(min=0), help="The seed that a failing test printed.")
@click.option("--request", metavar="NUMBER", help="Tell the story of one request, with what happened to instances.")
@click.option("--events", is_flag=True, help="Print every event and command, progress and scrapes included.")
def command(seed: int, request: str | None, events: bool) -> None:
    """Run one seed of the fault swarm again and check its invariants.

    Prints what the seed stands for, then whether all holds. Where something does not: what, and the story of the
    request that it is about, or the last events before it. The same seed gives the same lines. Exit status 1 where an
    invariant is broken.
    """
    drawn = draw(seed)
    click.echo("\n".join(_about(drawn)))
    story = Story(everything=events)
    broken: Broken | None = None
    run: Run | None = None
    try:
        run = watched(drawn, seed, story.note).run()
    except Broken as found:
        broken = found
    for line in _told(story, request or ("" if events or broken is None else broken.about), events, broken is not None):
        click.echo(line)
    if broken is not None:
        click.echo(f"broken: {broken}", err=True)
        sys.exit(1)
    assert run is not None
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(run.tally.outcomes.items()))
    click.echo(f"all invariants hold; {outcomes}; {run.virtual_s:.1f} s of virtual time")


def _about(drawn: Drawn) -> list[str]:
    """What the seed stands for."""
    plan = drawn.plan
    lines = [f"settings: {of_settings(plan.settings)}"]
    for member in plan.fleet.members:
        profile = member.profile
        lines.append(f"instance {member.id}: {profile.name}, KV {profile.kv_tokens} tokens, steps x {member.pace:g}")
    tenants = len({client.tenant for client in drawn.clients})
    leaving = sum(client.leaves_after_s is not None for client in drawn.clients)
    lines.append(f"{len(drawn.workload.calls)} calls of {tenants} tenants, {leaving} leave; requests tell {plan.told}")
    for fault in plan.faults:
        what = f"{fault.at:.3f} s: {fault.fault} {fault.instance}"
        lines.append(f"fault at {what}" + (f" until {fault.until:.3f} s" if fault.until is not None else ""))
    lines += [f"operator at {act.at_s:.3f} s: {act.what} {act.instance}" for act in drawn.acts]
    return lines


def _told(story: Story, request: str, everything: bool, broken: bool) -> list[str]:
    """The lines of the story to print."""
    if request:
        return list(story.of(request))
    lines = [line for _, line in story.lines]
    return lines if everything else lines[-LAST_LINES:] if broken else []
