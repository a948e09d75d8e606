"""Check: the emulator in real time against the simulator.

The same calls at the same times: over HTTP to `isochrone emulate`, alone and as four engines behind `isochrone serve`,
and in virtual time.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from isochrone.cli import rig
from isochrone.cli.live import Unusable, measure
from isochrone.nouns.settings import Settings
from isochrone.simulator.belief.alone import Served
from isochrone.simulator.belief.finding import Check, Data, Finding, Verdict
from isochrone.simulator.belief.realtime import compare, simulated
from isochrone.simulator.fleet import fleet
from isochrone.simulator.generators import generate
from isochrone.simulator.plan import Plan
from isochrone.simulator.workload import Workload

PROFILE = "a100-80g-27b-bf16"
"""50 ms a step: what client, gateway and emulator add is little beside it."""
MODEL = "emulated"
ENGINES = 4
POLICY = "equal-cost"
SPEC = "generate:prefix,groups=8,shared=512,own=300,output=60,output_cv=0.8,load=0.7,seconds=25"
ERROR_MAX = 0.10
SETTLE_S = 2.0
"""A scrape and a heartbeat of every engine before the first call."""
Runner = Callable[[Workload, Path], Awaitable[Served]]


def run(_: Data) -> Finding:
    """Needs no data."""
    finding = Finding(
        name="emulator",
        title="Emulated engines over HTTP against the simulator",
        source="isochrone emulate and isochrone serve on this machine",
        bar=f"TTFT, TPOT and E2E within {ERROR_MAX:.0%} at p50 and p90",
        fitted="nothing",
    )
    results = []
    try:
        for label, count, policy, runner in ARMS:
            members = fleet([(PROFILE, count)], {}, {})
            workload = generate(SPEC, 1, members.capacity)
            ours = simulated(Plan(Settings(policy=policy), members), workload)
            with tempfile.TemporaryDirectory(prefix="isochrone-validate-") as folder:
                theirs = uvloop.run(_awaited(runner(workload, Path(folder))))
            results += compare(finding, f"{label}, {len(workload.calls)} calls", [theirs], ours, ERROR_MAX)
    except (Unusable, rig.RigError) as problem:
        finding.headline = str(problem)
        return finding
    held = sum(holds for _, holds in results)
    finding.verdict = Verdict.of(held == len(results))
    finding.headline = f"{held} of {len(results)} figures within {ERROR_MAX:.0%}; worst {max(results)[0]:.1%}"
    finding.notes.append("published: measured over HTTP; latencies from when a call was due")
    return finding


async def _awaited(measuring: Awaitable[Served]) -> Served:
    return await measuring


async def _alone(workload: Workload, logs: Path) -> Served:
    async with rig.engines(_engines(1), logs) as urls:
        return await measure(urls[0], workload, MODEL)


async def _behind_gateway(workload: Workload, logs: Path) -> Served:
    async with rig.engines(_engines(ENGINES), logs) as urls, rig.gateway(urls, POLICY, logs) as port:
        await asyncio.sleep(SETTLE_S)
        return await measure(f"http://127.0.0.1:{port}", workload, MODEL)


def _engines(count: int) -> rig.Engines:
    return rig.Engines(PROFILE, count=count, extra=("--mean-output", "0"))


ARMS: tuple[tuple[str, int, str, Runner], ...] = (
    ("one engine", 1, "round-robin", _alone),
    (f"{ENGINES} engines behind the gateway, {POLICY}", ENGINES, POLICY, _behind_gateway),
)
"""Label, engines, policy that the simulator runs, and how it is measured."""
CHECK = Check("emulator", "the emulator in real time against the simulator", run)
