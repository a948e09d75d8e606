"""`isochrone simulate`: policies compared in virtual time."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from isochrone.cli.emulate import parse_slow
from isochrone.cli.plugins import load_policies, sources
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from isochrone.scheduling.parts import PARTS
from isochrone.simulator import report, results
from isochrone.simulator.faults import check_instances, read_faults
from isochrone.simulator.fleet import fleet
from isochrone.simulator.gateways import GATEWAYS_MAX
from isochrone.simulator.generators import PREFIX
from isochrone.simulator.requests import TOLD, Objective
from isochrone.simulator.run import Plan
from isochrone.simulator.saved import SavedRuns
from isochrone.simulator.sweep import Arm, Job, Result, load, run_all
from isochrone.simulator.workload import BadWorkload
from isochrone.twin.profiles import PROFILES

JOBS_MAX = 100_000
"""Runs of one sweep."""
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


def parse_profiles(values: Sequence[str], instances: int) -> list[tuple[str, int]]:
    """NAME or NAME:COUNT; a NAME without a count gets what is left of `instances`."""
    counted: list[tuple[str, int]] = []
    open_ends = 0
    for value in values:
        name, colon, count = value.partition(":")
        if name not in PROFILES:
            near = get_close_matches(name, PROFILES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(PROFILES)}"
            raise click.BadParameter(f"there is no profile {name!r}; {hint}", param_hint="--profile")
        if colon and not count.isdecimal():
            raise click.BadParameter(f"{value!r} is not NAME:COUNT", param_hint="--profile")
        counted.append((name, int(count) if colon else 0))
        open_ends += not colon
    if open_ends > 1:
        raise click.BadParameter("only one profile may go without a count", param_hint="--profile")
    left = instances - sum(count for _, count in counted)
    if open_ends == 1:
        if left < 1:
            raise click.BadParameter(f"{instances} instances leave none without a count", param_hint="--profile")
        return [(name, count or left) for name, count in counted]
    return counted


def parse_arms(names: Sequence[str], without: Sequence[str], settings: Settings) -> list[Arm]:
    """Policies, `all` of them, and equal-cost with parts left out."""
    known = policies.names()
    wanted: list[str] = []
    for name in names:
        wanted += ["equal-cost", *(one for one in known if one != "equal-cost")] if name == "all" else name.split(",")
    arms = []
    for name in dict.fromkeys(wanted):
        if not policies.exists(name):
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise click.BadParameter(f"there is no policy {name!r}; {hint}", param_hint="--policy")
        arms.append(Arm(name, name))
    parts = list(PARTS) if "all" in without else [part for one in without for part in one.split(",")]
    for part in parts:
        if part not in PARTS:
            near = get_close_matches(part, PARTS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(PARTS)}"
            raise click.BadParameter(f"there is no part {part!r}; {hint}", param_hint="--without")
        arms.append(Arm(f"equal-cost without {part}", "equal-cost", {"without": settings.without | {part}}))
    return arms


def parse_settings(pairs: Sequence[str]) -> Settings:
    """NAME=VALUE of the core's settings, checked against their types."""
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if name not in fields or not equals:
            near = get_close_matches(name, fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise click.BadParameter(f"there is no setting {name!r}{hint}", param_hint="--set")
        try:
            value = msgspec.json.decode(text.encode())
        except msgspec.DecodeError:
            value = text
        values[name] = value
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise click.BadParameter(str(error), param_hint="--set") from None


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


def numbers(text: str, param: str) -> list[float]:
    """Comma-separated numbers above 0."""
    try:
        values = [float(one) for one in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) <= 0:
        raise click.BadParameter(f"{text!r}: expected numbers above 0, with commas between", param_hint=param)
    return values


@click.command()
@click.option("--workload", "-w", required=True, help="A file, or generate:NAME,key=value,... (generate:sharegpt).")
@click.option("--requests", type=click.IntRange(min=1), help="Length of a generated workload.")
@click.option("--instances", default="8", show_default=True, help="How many; several with commas make a sweep.")
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
    help="Repeatable, or with commas; NAME+queue: behind our queue; all.",
)  # fmt: skip
@click.option("--without", multiple=True, metavar="PART", help="Also equal-cost without this part; repeatable; all.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting of the core, for all arms.")
@click.option("--rate-scale", default="1", show_default=True, help="Salted copies; several with commas make a sweep.")
@click.option("--time-scale", default=1.0, show_default=True, type=click.FloatRange(min=0, min_open=True),
              help="Compress time. Makes caches look better than they are.")  # fmt: skip
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 1000))
@click.option("--warm-s", default=0.0, show_default=True, type=click.FloatRange(min=0), help="Not counted.")
@click.option("--told", default="nothing", show_default=True, type=click.Choice(TOLD),
              help="What requests tell of the objective: nothing, the slo, or also that they may be shed.")  # fmt: skip
@click.option("--ttft-s", default=2.0, show_default=True, help="Objective: first token within this ...")
@click.option("--ttft-factor", default=2.0, show_default=True, help="... plus so many unloaded prefill times.")
@click.option("--tpot-s", default=0.1, show_default=True, help="Objective: mean gap between tokens.")
@click.option("--faults", type=click.Path(exists=True, dir_okay=False), help="A list of faults in YAML.")
@click.option("--gateways", default=1, show_default=True, type=click.IntRange(1, GATEWAYS_MAX),
              help="Clusters that share the instances and know of each other only by scrapes.")  # fmt: skip
@click.option("--sticky", is_flag=True, help="A session's requests all come to one gateway; else each to any.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Processes; all cores by default.")
@click.option("--resume", type=click.Path(dir_okay=False),
              help="Keep each finished run in this file, and take from it what is there already.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write the JSON here.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a report with plots here.")
def command(
    workload: str,
    requests: int | None,
    instances: str,
    profile: tuple[str, ...],
    slow: tuple[str, ...],
    max_num_seqs: int | None,
    kv_tokens: int | None,
    chunk: int | None,
    policy: tuple[str, ...],
    without: tuple[str, ...],
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
    gateways: int,
    sticky: bool,
    workers: int | None,
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
    settings = parse_settings(changes)
    arms = parse_arms(policy, without, settings)
    if requests is not None:
        if not workload.startswith(PREFIX):
            raise click.BadParameter("only a generated workload can be given a length", param_hint="--requests")
        workload += f",requests={requests}"
    own = {"max_num_seqs": max_num_seqs, "kv_tokens": kv_tokens, "chunk_tokens": chunk}
    own_set = {name: value for name, value in own.items() if value is not None}
    objective = Objective(ttft_s, ttft_factor, tpot_s)
    jobs: list[Job] = []
    try:
        for count in numbers(instances, "--instances"):
            members = fleet(parse_profiles(profile, int(count)), parse_slow(slow, int(count)), own_set)
            wrong = tuple(read_faults(faults)) if faults else ()
            check_instances(wrong, [member.id for member in members.members])
            plan = Plan(settings, members, objective, told, wrong, samples=200 if html else 0, gateways=gateways,
                        sticky=sticky)  # fmt: skip
            jobs += make_jobs(
                workload, arms, plan, seeds, numbers(rate_scale, "--rate-scale"), time_scale, warm_s, html
            )
        load(jobs[0].workload, jobs[0].seed, jobs[0].plan.fleet, jobs[0].rate_scale, time_scale)  # complain at once
        found = with_progress(jobs, workers or os.cpu_count() or 1, saved_runs(resume))
    except BadWorkload as error:
        raise click.ClickException(str(error)) from None
    names = [arm.name for arm in arms]
    about = {
        "workload": workload,
        "slo": results.slo(objective),
        "told": told,
        "seeds": seeds,
        "time_scale": time_scale,
        "profiles": list(profile),
        "slow": list(slow),
        "gateways": gateways,
        "sticky": sticky,
        "settings": list(changes),
    }
    finish(found, names, about, as_json, output, html)


def make_jobs(
    workload: str,
    arms: Sequence[Arm],
    plan: Plan,
    seeds: int,
    rate_scales: Sequence[float],
    time_scale: float,
    warm_s: float,
    html: str | None,
) -> list[Job]:
    """All runs of one cluster: seed by seed, so that a worker loads a workload once for all arms."""
    jobs = [
        Job(workload, arm, plan if seed == 0 else dataclasses.replace(plan, samples=0), seed, rate_scale, time_scale,
            warm_s, curves=bool(html) and seed == 0)
        for rate_scale in rate_scales
        for seed in range(seeds)
        for arm in arms
    ]  # fmt: skip
    if len(jobs) > JOBS_MAX:
        raise click.ClickException(f"{len(jobs):,} runs are more than {JOBS_MAX:,}")
    return jobs


def saved_runs(path: str | None) -> SavedRuns | None:
    """The file of --resume."""
    try:
        return SavedRuns(path, sources()) if path else None
    except OSError as error:
        raise click.ClickException(f"--resume {path}: {error.strerror}") from None


def with_progress(jobs: Sequence[Job], workers: int, saved: SavedRuns | None) -> list[Result]:
    """Run those whose results are not there yet; the bar goes to stderr."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    known = [saved.find(job) for job in jobs] if saved else [None] * len(jobs)
    found = [result for result in known if result is not None]
    open_jobs = [job for job, result in zip(jobs, known, strict=True) if result is None]
    if saved:
        click.echo(f"{len(found)} of {len(jobs)} runs are there already", err=True)
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("simulating", total=len(open_jobs))
        for job, result in run_all(open_jobs, workers, load_policies):
            found.append(result)
            if saved:
                saved.add(job, result)
            bar.update(task, advance=1, description=f"{result.arm}, seed {result.seed}")
    return found


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
