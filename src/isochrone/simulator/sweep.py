"""Many runs: arms x rates x sizes of the cluster x seeds, on all cores.

An arm is a policy with what is changed about it. Every arm of a point sees the same calls, seed by seed, so that
differences are taken in pairs.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec

from isochrone.nouns.settings import Settings
from isochrone.simulator import figures, generators
from isochrone.simulator.figures import Columns, Figures
from isochrone.simulator.fleet import Fleet
from isochrone.simulator.formats import read
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import simulate
from isochrone.simulator.shaping import WHOLE, Part, part_of, shaped
from isochrone.simulator.told_steps import ToldSteps
from isochrone.simulator.workload import Workload, without_lonely_tails


@dataclass(frozen=True, slots=True)
class Arm:
    """What is compared."""

    name: str
    policy: str
    changes: Mapping[str, object] = field(default_factory=dict)
    """Fields of Settings."""
    told_steps: ToldSteps | None = None
    """Of the plan."""

    def settings(self, base: Settings) -> Settings:
        return msgspec.structs.replace(base, policy=self.policy, **self.changes)


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    workload: str
    arm: Arm
    plan: Plan
    seed: int
    rate_scale: float = 1.0
    time_scale: float = 1.0
    warm_s: float = 0.0
    part: Part = WHOLE
    curves: bool = False
    """Keep what plots need: CDFs and timelines."""


@dataclass(slots=True)
class Result:
    """What a run gave, as plain data that crosses processes."""

    arm: str
    seed: int
    rate_scale: float
    instances: int
    calls: int
    offered_rps: float
    figures: Figures
    outcomes: dict[str, int]
    cpu_s: float
    wall_s: float
    memory_bytes: int
    """The most that the process ever had."""
    notes: list[str]
    ttft_cdf: list[float] = field(default_factory=list)
    e2e_cdf: list[float] = field(default_factory=list)
    timeline: dict[str, object] | None = None


def calls_of(spec: str, seed: int, fleet: Fleet, rate_scale: float, time_scale: float, part: Part) -> Workload:
    """The calls that a seed sees. Raises BadWorkload where one fits no instance."""
    drawn = spec.startswith(generators.PREFIX)
    workload = generators.generate(spec, seed, fleet.capacity) if drawn else _read(spec)
    workload = shaped(part_of(workload, part), seed, rate_scale, time_scale)
    fleet.check(workload.calls)
    workload.notes += _tight(workload, fleet)
    return workload


def _tight(workload: Workload, fleet: Fleet) -> list[str]:
    """What the profiles of real engines would have refused."""
    sizes = [call.prompt_tokens + call.output_tokens for call in workload.calls]
    notes = []
    for profile in {member.profile.name: member.profile for member in fleet.members}.values():
        over = sum(size > profile.kv_tokens for size in sizes)
        if over:
            few = f"{over:,} of {len(sizes):,} requests"
            notes.append(f"{few} are longer than the {profile.kv_tokens:,} tokens that {profile.name} holds")
    longest = max(sizes)
    if longest > (served := fleet.reference.max_model_len):
        notes.append(f"contexts of {longest:,} tokens are served, more than the profile's {served:,}")
    return notes


load = lru_cache(maxsize=4)(calls_of)
"""The same for every arm, and loaded once in each process."""


def check(jobs: Sequence[Job]) -> None:
    """Complain of any workload now, and not when its run comes: of all that are drawn, of a file on each cluster."""
    seen: set[tuple[object, ...]] = set()
    for job in jobs:
        drawn = job.workload.startswith(generators.PREFIX)
        what = (job.workload, job.part, job.plan.fleet, *((job.seed, job.rate_scale) if drawn else ()))
        if what not in seen:
            # The first is kept: where there is one worker it is this process.
            (calls_of if seen else load)(
                job.workload, job.seed, job.plan.fleet, job.rate_scale, job.time_scale, job.part
            )
            seen.add(what)


def files_of(spec: str) -> list[str]:
    """Files whose content the workload is made from."""
    if not spec.startswith(generators.PREFIX):
        return [spec]
    return [pair.removeprefix("file=") for pair in spec.split(",") if pair.startswith("file=")]


@lru_cache(maxsize=1)
def _read(path: str) -> Workload:
    workload = read(path)
    without_lonely_tails(workload.calls)
    return workload


def run_job(job: Job) -> Result:
    """One run, in whatever process."""
    fleet = job.plan.fleet
    workload = load(job.workload, job.seed, fleet, job.rate_scale, job.time_scale, job.part)
    plan = replace(job.plan, settings=job.arm.settings(job.plan.settings), told_steps=job.arm.told_steps)
    cpu, wall = time.process_time(), time.perf_counter()
    run = simulate(plan, workload, job.seed)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    columns = Columns(run, workload.calls, fleet.reference, job.warm_s)
    result = Result(
        arm=job.arm.name,
        seed=job.seed,
        rate_scale=job.rate_scale,
        instances=len(fleet.members),
        calls=len(workload.calls),
        offered_rps=len(workload.calls) / max(workload.seconds, 1e-9),
        figures=figures.figures(run, columns, plan.objective),
        outcomes=dict(run.tally.outcomes),
        cpu_s=cpu,
        wall_s=wall,
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        notes=workload.notes + run.notes,
    )
    if job.curves:
        result.ttft_cdf = figures.cdf(columns.ttft[columns.served])
        result.e2e_cdf = figures.cdf(columns.e2e[columns.served])
        line = run.timeline
        if line is not None:
            result.timeline = {
                "at_s": line.at_s, "held": line.held, "running": line.running, "kv_usage": line.kv_usage
            }  # fmt: skip
    return result


def run_all(
    jobs: Sequence[Job], workers: int, prepare: Callable[[], None] = lambda: None
) -> Iterator[tuple[Job, Result]]:
    """Results as they come. One worker: in this process. `prepare` is called first in each other process."""
    if workers <= 1 or len(jobs) <= 1:
        yield from ((job, run_job(job)) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=prepare) as pool:
        try:
            asked = {pool.submit(run_job, job): job for job in jobs}
            for future in as_completed(asked):
                yield asked[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            raise
