"""Seeds of the simulator's fault swarm: twins of engines, sessions, every fault, the invariants in all of them.

`isochrone replay --seed N --events` shows what happened in one.
"""

import pytest

from isochrone.simulator.swarm import run_seed

SEEDS = 120


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed-{seed}")
def test_invariants_hold_whatever_fails(seed: int) -> None:
    run_seed(seed)


def test_same_seed_same_events() -> None:
    for seed in (3, 14, 15):
        logs: list[list[str]] = [[], []]
        for log in logs:
            run_seed(seed, log.append)
        assert logs[0] == logs[1]
        assert len(logs[0]) > 100
