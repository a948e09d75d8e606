"""`isochrone simulate`: policies compared in virtual time."""

import dataclasses
from collections.abc import Sequence

import click
import msgspec
from rich.console import Console

from isochrone.cli.emulate import parse_slow
from isochrone.cli.plugins import load_policies
from isochrone.cli.simulate_runs import Where, run
from isochrone.cli.simulate_shapes import Shape, shape_options
from isochrone.cli.simulate_table import show
from isochrone.cli.simulate_words import (
    can_be_written,
    check_workload,
    parse_arms,
    parse_clusters,
    parse_numbers,
    parse_settings,
    parse_window,
    told_arms,
)
from isochrone.simulator import report, results
from isochrone.simulator.faults import check_instances, read_faults
from isochrone.simulator.generators import PREFIX
from isochrone.simulator.plan import Plan
from isochrone.simulator.requests import TOLD, Objective
from isochrone.simulator.shaping import Part
from isochrone.simulator.sweep import Arm, Job, Result
from isochrone.simulator.workload import CALLS_MAX, BadWorkload

RUNS_MAX = 100_000
"""Runs of one sweep."""


@click.command()
@click.option("--workload", "-w", required=True, help="A file, or generate:NAME,key=value,... (generate:sharegpt).")
@click.option("--requests", type=click.IntRange(1, CALLS_MAX), help="So many: drawn, or the first ones of a file.")
@click.option(
    "--window", metavar="START:END", help="Only what arrives in these seconds of the workload; 600: to the end."
)
@click.option("--instances", help="How many (8); several with commas make a sweep.")
@click.option(
    "--profile",
    multiple=True,
    default=("h100-8b",),
    show_default=True,
    help="What the instances are: NAME, or NAME:COUNT, repeatable, for a mixed cluster.",
)
@click.option("--slow", multiple=True, metavar="INDEX:FACTOR", help="A slow instance, from 0; repeatable.")
@click.option("--max-num-seqs", type=click.IntRange(min=1), help="Instead of the profiles'.")
@click.option("--kv-tokens", type=click.IntRange(min=64), help="Instead of the profiles'.")
@click.option("--chunk", type=click.IntRange(min=2), help="Most tokens in a step, instead of the profiles'.")
@click.option(
    "--policy", "-p", multiple=True, default=("equal-cost", "least-request"), show_default=True,
    help="Repeatable, or with commas; NAME+admission: inside our admission; all.",
)  # fmt: skip
@click.option("--without", multiple=True, metavar="PART", help="Also equal-cost without this part; repeatable; all.")
@click.option("--step-times", "step_times", multiple=True, metavar="FACTOR[:SPREAD]",
              help="Also equal-cost that is told step times and learns none: so many times the true ones, and each "
                   "instance's off by a factor of its own (0.2: some 20 %); repeatable.")  # fmt: skip
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting of the core, for all arms.")
@click.option("--rate-scale", default="1", show_default=True, help="Salted copies; several with commas make a sweep.")
@click.option("--time-scale", default=1.0, show_default=True, type=click.FloatRange(min=0, min_open=True),
              help="Compress time. Makes caches look better than they are.")  # fmt: skip
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 1000))
@click.option("--warm-s", default=0.0, show_default=True, type=click.FloatRange(min=0), help="Not counted.")
@click.option("--told", default="shed", show_default=True, type=click.Choice(TOLD),
              help="What requests tell of the objective: nothing, the slo, or also that they may be shed.")  # fmt: skip
@click.option("--ttft-s", default=2.0, show_default=True, help="Objective: first token within this ...")
@click.option("--ttft-factor", default=2.0, show_default=True, help="... plus so many unloaded prefill times.")
@click.option("--tpot-s", default=0.1, show_default=True, help="Objective: mean gap between tokens.")
@click.option("--faults", type=click.Path(exists=True, dir_okay=False), help="A list of faults in YAML.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Processes; all cores by default.")
@click.option(
    "--ray", metavar="ADDRESS", help="Make the runs on this Ray cluster; local: on one of this machine alone."
)
@click.option("--resume", type=click.Path(dir_okay=False),
              help="Keep each finished run in this file, and take from it what is there already.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--output", type=click.Path(dir_okay=False), callback=can_be_written, help="Write the JSON here.")
@click.option("--html", type=click.Path(dir_okay=False), callback=can_be_written,
              help="Write a report with plots here.")  # fmt: skip
@shape_options
def command(
    workload: str,
    requests: int | None,
    window: str | None,
    instances: str | None,
    profile: tuple[str, ...],
    slow: tuple[str, ...],
    max_num_seqs: int | None,
    kv_tokens: int | None,
    chunk: int | None,
    policy: tuple[str, ...],
    without: tuple[str, ...],
    step_times: tuple[str, ...],
    changes: tuple[str, ...],
    rate_scale: str,
    time_scale: float,
    seeds: int,
    warm_s: float,
    told: str,
    ttft_s: float,
    ttft_factor: float,
    tpot_s: float,
    faults: str | None,
    shape: Shape,
    workers: int | None,
    ray: str | None,
    resume: str | None,
    as_json: bool,
    output: str | None,
    html: str | None,
) -> None:
    """Replay a workload on a cluster of simulated engines, under one policy after the other.

    The scheduler is the one that `isochrone serve` runs; engines are twins on measured step times; time is virtual.

    \b
      isochrone simulate -w generate:sessions,load=0.9 --instances 16 -p all --seeds 5 --html report.html
      isochrone simulate -w conversation.jsonl.gz --profile h100-70b-tp4 --instances 16 --rate-scale 2,3,4
    """
    load_policies()
    check_workload(workload)
    settings = parse_settings(changes)
    arms = parse_arms(policy, without, settings, changes) + told_arms(step_times, settings)
    part = parse_window(window)
    if requests is not None:
        if workload.startswith(PREFIX):
            workload += f",requests={requests}"
        else:
            part = dataclasses.replace(part, requests=requests)
    own = {"max_num_seqs": max_num_seqs, "kv_tokens": kv_tokens, "chunk_tokens": chunk}
    own_set = {name: value for name, value in own.items() if value is not None}
    objective = Objective(ttft_s, ttft_factor, tpot_s)
    scales = Scales(part, parse_numbers(rate_scale, "--rate-scale"), time_scale, warm_s)
    jobs: list[Job] = []
    try:
        wrong = tuple(read_faults(faults)) if faults else ()
        for profiles in parse_clusters(profile, shape.instances(instances)):
            members = shape.fleet(profiles, parse_slow(slow, sum(count for _, count in profiles)), own_set)
            check_instances(wrong, [member.id for member in members.members])
            plan = Plan(settings, members, objective, told, wrong, samples=200 if html else 0,
                        gateways=shape.gateways, sticky=shape.sticky, link_gbps=shape.link_gbps)  # fmt: skip
            jobs += make_jobs(workload, arms, plan, seeds, scales, html)
        found = run(jobs, Where(workers, ray, resume))
    except BadWorkload as error:
        raise click.ClickException(str(error)) from None
    names = [arm.name for arm in arms]
    about: dict[str, object] = {
        "workload": workload,
        "window_s": [part.start_s, part.end_s],
        "requests": requests,
        "slo": results.slo(objective),
        "told": told,
        "seeds": seeds,
        "time_scale": time_scale,
        "profiles": list(profile),
        "slow": list(slow),
        **shape.about(),
        "settings": list(changes),
        "scrape_interval_s": {arm.name: arm.settings(settings).scrape_interval_s for arm in arms},
    }
    finish(found, names, about, as_json, output, html)


@dataclasses.dataclass(frozen=True, slots=True)
class Scales:
    """How much of the workload, how often, how fast."""

    part: Part
    rates: Sequence[float]
    time: float
    warm_s: float


def make_jobs(
    workload: str, arms: Sequence[Arm], plan: Plan, seeds: int, scales: Scales, html: str | None
) -> list[Job]:  # fmt: skip
    """All runs of one cluster: seed by seed, so that a worker loads a workload once for all arms."""
    jobs = [
        Job(workload, arm, plan if seed == 0 else dataclasses.replace(plan, samples=0), seed, rate, scales.time,
            scales.warm_s, scales.part, curves=bool(html) and seed == 0)
        for rate in scales.rates
        for seed in range(seeds)
        for arm in arms
    ]  # fmt: skip
    if len(jobs) > RUNS_MAX:
        raise click.ClickException(f"{len(jobs):,} runs are more than {RUNS_MAX:,}")
    return jobs


def finish(
    found: Sequence[Result],
    names: Sequence[str],
    about: dict[str, object],
    as_json: bool,
    output: str | None,
    html: str | None,
) -> None:
    """Say what came out, in every form that was asked for."""
    document = msgspec.json.encode(results.document(found, names, about))
    if output:
        with open(output, "wb") as file:
            file.write(document)
    if html:
        with open(html, "w", encoding="utf-8") as page:
            page.write(report.page(found, names, about))
    if as_json:
        click.echo(document)
    else:
        show(found, names, Console())
