"""Step times that a simulated cluster is told, true or wrong, instead of learning them: what learning is worth.

They come as a warm start does, and are held on to where the part `steps` is left out.
"""

import random
from dataclasses import dataclass
from math import log

import numpy as np

from isochrone.cluster.warm_start import VERSION
from isochrone.instances.steptime import Coefficients
from isochrone.instances.table import unlabelled
from isochrone.simulator.fleet import Fleet
from isochrone.twin.steptime import StepTime

BATCHES = (1, 4, 16, 32, 64, 128)
"""Decoding requests ..."""
PREFILLS = (0, 0, 256, 1024, 1920)
"""... and prompt tokens of the steps that the line is laid through; half of all steps decode only."""
CONTEXT = 1_250
"""Tokens of each decoding request, and ahead of what is prefilled."""
SAMPLES = 1_000
"""What the told model counts as having been learnt from: warm."""
SIGMA = 0.05
"""How far off such a line is, relative."""


@dataclass(frozen=True, slots=True)
class ToldSteps:
    """How wrong they are."""

    factor: float
    """All alike are so many times the true ones."""
    spread: float = 0.0
    """And each instance's by a factor of its own: the standard deviation of its logarithm."""

    @property
    def words(self) -> str:
        return f"x{self.factor:g}" + (f", each off by {self.spread:g}" if self.spread else "")


def warm_start(fleet: Fleet, block_tokens: int, told: ToldSteps, seed: int) -> dict[str, object]:
    """What `Cluster.restore` takes: each class's step times by its profile, each instance's level by its pace."""
    chance = random.Random(f"told steps {seed}")
    classes, levels = {}, {}
    for member in fleet.members:
        kv_tokens = member.limits(block_tokens).kv_blocks * block_tokens
        line = linear(member.profile.step)
        classes[unlabelled(member.model, "vllm", kv_tokens)] = {
            "scale": [one * told.factor for one in line], "ratio": [1.0] * 4, "samples": SAMPLES, "sigma": SIGMA
        }  # fmt: skip
        level = log(member.pace) + chance.gauss(0.0, told.spread)
        levels[member.id] = {"value": level, "samples": SAMPLES, "sigma": SIGMA}
    return {"version": VERSION, "classes": classes, "levels": levels}


def linear(step: StepTime) -> Coefficients:
    """The straight line that comes nearest to steps with a floor: least squares of the relative error."""
    rows, times = [], []
    for batch in BATCHES:
        for prefill in PREFILLS:
            tokens, read, pairs = batch + prefill, batch * CONTEXT, prefill * (CONTEXT + prefill / 2)
            rows.append((1.0, float(tokens), float(read), pairs))
            times.append(step.seconds(tokens, read, pairs))
    # What reading KV and attention take is linear as it is; the floor alone is not.
    x, t = np.array(rows), np.array(times)
    t_line = t - step.kv_token_s * x[:, 2] - step.pair_s * x[:, 3]
    (step_s, token_s), *_ = np.linalg.lstsq(x[:, :2] / t[:, None], t_line / t, rcond=None)
    return Coefficients(float(step_s), float(token_s), step.kv_token_s, step.pair_s)
