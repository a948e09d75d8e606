"""Seeds of the fault swarm: twins of engines, answers in bytes, clients that leave, an operator, every fault;
the invariants of `isochrone.simulator.invariants` in all of them.

`isochrone replay --seed N` tells the story of one.
"""

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from isochrone.cluster import Cluster
from isochrone.nouns.commands import Command, Dispatch, Record
from isochrone.nouns.events import Configured, Event
from isochrone.nouns.instant import Instant
from isochrone.simulator.faults import FAULTS
from isochrone.simulator.invariants import Broken
from isochrone.simulator.swarm import draw, run_seed, watched

SEEDS = 300
"""Some 16 s of CPU in all."""
TWICE = range(0, SEEDS, 20)
"""Seeds whose events are given to a second cluster."""


def printing_how_to_replay(seed: int, run: Callable[[], object]) -> None:
    """A failure names the command that shows it."""
    try:
        run()
    except Exception as error:
        how = f"isochrone replay --seed {seed}"
        pytest.fail(f"{error!r}; run again with: {how}", pytrace=not isinstance(error, Broken))


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed-{seed}")
def test_invariants_hold_whatever_fails(seed: int) -> None:
    printing_how_to_replay(seed, lambda: run_seed(seed))


def test_a_broken_invariant_names_the_command_that_shows_it() -> None:
    def breaks() -> None:
        raise Broken("request 7: dispatched twice", "7")

    with pytest.raises(pytest.fail.Exception, match=r"dispatched twice.*isochrone replay --seed 12345"):
        printing_how_to_replay(12345, breaks)


def plain(what: Event | Command) -> str:
    """In words that are the same in each process: no addresses of objects, no set."""
    if isinstance(what, Record):
        return f"{msgspec.structs.replace(what.decision, evidence=None)}"
    return f"{what}" if not isinstance(what, Configured) else f"{sorted(what.settings.without)}"


@pytest.mark.parametrize("seed", TWICE)
def test_the_same_events_give_the_same_commands(seed: int) -> None:
    """What a cluster was told, told to another one."""
    told: list[tuple[Instant, Event | None, str]] = []
    simulation = watched(
        draw(seed), seed, lambda now, what: told.append((now, None if isinstance(what, Command) else what, plain(what)))
    )
    simulation.run()
    again = Cluster(simulation.plan.settings, random.Random(f"ties {seed}"))
    expected: list[str] = []
    for now, event, line in told:
        if event is None:
            assert line == expected.pop(0)
        else:
            assert not expected
            expected = list(map(plain, again.handle(now, event)))
    assert not expected


def digest(seeds: range) -> str:
    """Of all events and commands of the seeds."""
    lines = hashlib.sha256()
    for seed in seeds:
        run_seed(seed, lambda now, what: lines.update(f"{now} {plain(what)}\n".encode()))
    return lines.hexdigest()


def test_no_order_of_a_set_decides() -> None:
    """Strings hash differently in each process; the runs are the same."""
    code = "from tests.simulation.test_swarm import digest; print(digest(range(5, 13)))"
    seen = set()
    for hashing in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashing, "PYTHONPATH": os.pathsep.join([".", *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout)
    assert len(seen) == 1


def test_the_seeds_bring_about_what_they_are_meant_to() -> None:
    """All faults, policies, acts; streams that go on elsewhere, once and twice; retries; refusals."""
    faults: Counter[str] = Counter()
    acts: Counter[str] = Counter()
    without: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    continued: Counter[int] = Counter()
    for seed in range(SEEDS):
        drawn = draw(seed)
        faults.update(fault.fault for fault in drawn.plan.faults)
        acts.update(act.what for act in drawn.acts)
        without.update(drawn.plan.settings.without)
    for seed in range(0, SEEDS, 10):
        times: Counter[str] = Counter()

        def count(now: Instant, what: Event | Command, times: Counter[str] = times) -> None:
            if isinstance(what, Dispatch) and what.continues:
                times[what.request] += 1

        outcomes.update(run_seed(seed, count).tally.outcomes)
        continued.update(times.values())
    assert set(faults) == set(FAULTS)
    assert set(acts) == {"reload", "weigh", "remove"}
    assert len(without) >= 12
    assert continued[1] >= 10
    assert continued[2] >= 1
    assert {"done", "failed", "client_left", "queue_full", "slo_unattainable", "no_instance_ready"} <= set(outcomes)
