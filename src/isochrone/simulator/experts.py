"""Mixtures of experts: how much longer a step takes because some experts are asked more than others.

    step time = that of even load * (1 + share * (imbalance - 1)),   imbalance = busiest device's load / mean load

`share` is the part of an evenly loaded step in which expert layers keep everybody waiting for the busiest device. By
default .55: of DeepSeek-V3's 37 billion active parameters, 58 layers x 8 routed experts x 44 million are 20 billion.
The ratio is the inverse of the "balancedness" that vLLM's and SGLang's expert balancers report.

How popular each expert is, is drawn from a power law, P(x) ~ x^-exponent for x from 1 to 1,638, as in NVIDIA's measured
MoE kernels (aiconfigurator, collect_moe.py: exponents 1.01 and 1.2, x up to 0.8 of the tokens in a step; here 2,048). A
token asks `top` different experts, so no expert gets more than every token; what is cut off goes to the others in
proportion. Experts lie on the devices in order, as many on each.

Drawn once for each engine, from `seed`: the exponent, evenly within its range, and the popularities. What is left out:
the drift of popularity with what is asked, balancers that move or copy experts, and the noise of small batches, which
makes the busiest device of a small step busier still.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches

from isochrone.simulator.workload import BadWorkload

POPULARITY_RATIO_MAX = 1638.0
"""Ratio of the most to the least popular expert, at most."""
EXPERTS_MAX = 4096
"""Experts of one layer."""


@dataclass(frozen=True, slots=True)
class Experts:
    """What is to be known of a model's expert layers. The defaults are DeepSeek-V3's on eight devices."""

    count: int = 256
    """Experts in a layer."""
    top: int = 8
    """Experts that a token asks."""
    devices: int = 8
    """Devices over which a layer's experts are spread."""
    share: float = 0.55
    least: float = 1.01
    most: float = 1.2
    """Range of the exponent."""
    seed: int = 0

    def factor(self, engine: int) -> float:
        """How many times as long a step of this engine takes as under even load."""
        chance = random.Random(f"experts {self.seed} {engine}")
        exponent = self.least + (self.most - self.least) * chance.random()
        popularity = [power_law(chance.random(), exponent, POPULARITY_RATIO_MAX) for _ in range(self.count)]
        return 1.0 + self.share * (imbalance(asked(popularity, self.top), self.devices) - 1.0)


def power_law(u: float, exponent: float, most: float) -> float:
    """The u-quantile of x between 1 and `most` with density x^-exponent."""
    if exponent == 1.0:
        return float(most**u)
    rest = 1.0 - exponent
    return float((1.0 + u * (most**rest - 1.0)) ** (1.0 / rest))


def asked(popularity: Sequence[float], top: int) -> list[float]:
    """Share of the tokens that asks each expert: in proportion to popularity, at most 1, `top` in all."""
    order = sorted(range(len(popularity)), key=popularity.__getitem__, reverse=True)
    loads = [0.0] * len(popularity)
    left, rest = float(top), sum(popularity)
    for expert in order:
        loads[expert] = min(1.0, left * popularity[expert] / rest)
        left -= loads[expert]
        rest -= popularity[expert]
    return loads


def imbalance(loads: Sequence[float], devices: int) -> float:
    """The busiest device's load over the mean."""
    each = len(loads) // devices
    by_device = [sum(loads[first : first + each]) for first in range(0, len(loads), each)]
    return max(by_device) * devices / sum(by_device)


def parse(text: str) -> Experts:
    """`256,top=8,devices=8,share=.55,exponent=1.01-1.2,seed=0`: any of them; a number alone is that of experts."""
    made = Experts()
    known = [one.name for one in fields(Experts) if one.name not in ("least", "most")] + ["exponent"]
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            name, value = "count", part
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise BadWorkload(f"experts have no {name!r}; {hint}")
        made = _changed(made, name, value)
    if not 1 <= made.top <= made.count <= EXPERTS_MAX or not 1 <= made.devices <= made.count:
        raise BadWorkload(f"{text!r}: 1 <= top <= experts <= {EXPERTS_MAX}, and a device holds at least one of them")
    if made.count % made.devices:
        raise BadWorkload(f"{made.count} experts cannot be spread evenly over {made.devices} devices")
    if not (0.0 <= made.share <= 1.0 and 0.0 <= made.least <= made.most <= 10.0):
        raise BadWorkload(f"{text!r}: share is 0 to 1, exponents are 0 to 10, the smaller one first")
    return made


def _changed(made: Experts, name: str, value: str) -> Experts:
    try:
        if name == "exponent":
            least, _, most = value.partition("-")
            return replace(made, least=float(least), most=float(most or least))
        if name == "share":
            return replace(made, share=float(value))
        return replace(made, **{name: int(value)})
    except ValueError:
        raise BadWorkload(f"experts: {name}={value!r} is no number") from None
