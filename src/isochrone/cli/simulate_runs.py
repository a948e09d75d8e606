"""A comparison's runs: on this machine's cores or on a Ray cluster, with those left out that a file has already."""

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from isochrone.cli.plugins import load_policies, sources
from isochrone.simulator import on_ray, sweep
from isochrone.simulator.saved import SavedRuns
from isochrone.simulator.sweep import Job, Result


@dataclass(frozen=True, slots=True)
class Where:
    """Where runs are made and kept."""

    workers: int | None
    """Processes, or cores of a local Ray cluster; None: as many as there are cores."""
    ray: str | None
    """Address of a Ray cluster, or `local`."""
    resume: str | None
    """The file of finished runs."""

    def make(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Result]]:
        """Results as they come."""
        if self.ray:
            return on_ray.run_all(jobs, self.ray, self.workers, load_policies)
        return sweep.run_all(jobs, self.workers or os.cpu_count() or 1, load_policies)


def run(jobs: Sequence[Job], where: Where) -> list[Result]:
    """The results of all jobs; the bar goes to stderr."""
    saved = saved_runs(where.resume)
    known = [saved.find(job) for job in jobs] if saved else [None] * len(jobs)
    found = [result for result in known if result is not None]
    left = [job for job, result in zip(jobs, known, strict=True) if result is None]
    if saved:
        click.echo(f"{len(found)} of {len(jobs)} runs are there already", err=True)
    try:
        sweep.check(left)
        found += with_progress(left, where, saved)
    except on_ray.RayTrouble as error:
        raise click.ClickException(f"--ray {where.ray}: {error}") from None
    except BrokenProcessPool:
        raise click.ClickException(
            "a worker process was killed, probably for its memory: take fewer --workers, and --resume FILE so that "
            "finished runs are kept"
        ) from None
    return found


def saved_runs(path: str | None) -> SavedRuns | None:
    """The file of --resume."""
    try:
        return SavedRuns(path, sources()) if path else None
    except OSError as error:
        raise click.ClickException(f"--resume {path}: {error.strerror}") from None


def with_progress(jobs: Sequence[Job], where: Where, saved: SavedRuns | None) -> list[Result]:
    """Each result is kept as soon as it is there."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    found = []
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("simulating", total=len(jobs))
        for job, result in where.make(jobs):
            found.append(result)
            if saved:
                saved.add(job, result)
            bar.update(task, advance=1, description=f"{result.arm}, seed {result.seed}")
    return found
