"""A sweep on a real Ray cluster of this machine."""

import gzip
import os
import signal
from dataclasses import replace
from pathlib import Path

from isochrone.nouns.settings import Settings
from isochrone.simulator import on_ray, sweep
from isochrone.simulator.fleet import fleet
from isochrone.simulator.plan import Plan
from isochrone.simulator.sweep import Arm, Job, Result


def told(result: Result) -> Result:
    """Without what depends on the machine."""
    return replace(result, cpu_s=0.0, wall_s=0.0, memory_bytes=0)


def test_results_are_those_of_this_machine_even_where_a_worker_is_lost(tmp_path: Path) -> None:
    trace, killed = tmp_path / "t.jsonl.gz", tmp_path / "killed"
    with gzip.open(trace, "wt") as file:
        file.writelines(f'{{"t_ms":{k * 40},"input_tokens":{300 + k},"output_tokens":30}}\n' for k in range(200))

    def prepare() -> None:
        """The first worker dies with its first run."""
        try:
            os.close(os.open(killed, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    plan = Plan(Settings(), fleet([("h100-8b", 2)], {1: 1.5}, {}), samples=5)
    jobs = [
        Job(str(trace), Arm(name, name), plan, seed, rate_scale=1.5, curves=True)
        for seed in range(3)
        for name in ("equal-cost", "round-robin")
    ]
    far = {(job.arm.name, job.seed): told(result) for job, result in on_ray.run_all(jobs, on_ray.LOCAL, 2, prepare)}
    assert killed.exists()
    here = {(job.arm.name, job.seed): told(result) for job, result in sweep.run_all(jobs, 1)}
    assert far == here
    assert len({result.figures["e2e_p99_s"] for result in here.values()}) == 6, "seeds and arms differ"
