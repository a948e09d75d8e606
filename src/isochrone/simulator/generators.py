"""Workloads that are drawn: `generate:NAME,key=value,...`.

    poisson    prompt, output: means; prompt_cv, output_cv
    gamma      the same in bursts; cv of the gaps
    sharegpt   lengths of ShareGPT's first turns; share of the requests in groups with a shared prefix
    prefix     groups of requests with a long shared prefix and a short end of their own
    sessions   conversations of several turns under one of a few system prompts
    agents     an agent's many short turns; each adds what a tool returned
    lengths    file: lengths from a file without arrivals, in its order
    servegen   file: production clients (ServeGen), each with its own rate, burstiness and lengths

All take `rate` (requests a second) or `load` (share of what the instances can carry, .85 by default), and `seconds` or
`requests` (60 s by default).
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from isochrone.simulator import clients, draws
from isochrone.simulator.lengths import read_lengths
from isochrone.simulator.workload import CALLS_MAX, TOKENS_MAX, BadWorkload, Call, Workload

PREFIX = "generate:"
BLOCK = 16
SECONDS = 60.0
LOAD = 0.85
Values = dict[str, float]
Capacity = Callable[[float, float, float], float]
"""(mean prompt tokens, those not cached, mean output tokens) -> requests a second that the instances carry."""


@dataclass(slots=True)
class Recipe:
    """What to generate, with its chance and the next free block id."""

    values: Values
    chance: random.Random
    capacity: Capacity
    file: str = ""
    blocks: int = 1

    def fresh(self, count: int) -> tuple[int, ...]:
        """Ids of blocks that nobody has had yet."""
        self.blocks += count
        return tuple(range(self.blocks - count, self.blocks))

    def rate(self, prompt: float, uncached: float, output: float) -> float:
        """Requests a second."""
        values = self.values
        return values["rate"] or values["load"] * self.capacity(prompt, uncached, output)

    def over(self, count: int, at: int) -> bool:
        """Whether the workload is long enough."""
        if self.values["requests"]:
            return count >= self.values["requests"]
        if count >= CALLS_MAX:
            raise BadWorkload(f"{self.values['seconds']:g} seconds hold more than {CALLS_MAX:,} requests")
        return at > self.values["seconds"] * 1e9


def _poisson(recipe: Recipe) -> Iterator[Call]:
    values, chance = recipe.values, recipe.chance
    arrivals = draws.Arrivals(chance, recipe.rate(values["prompt"], values["prompt"], values["output"]), values["cv"])
    while True:
        prompt = draws.log_normal(chance, values["prompt"], values["prompt_cv"])
        yield Call(arrivals.next(), prompt, draws.log_normal(chance, values["output"], values["output_cv"]))


def _sharegpt(recipe: Recipe) -> Iterator[Call]:
    values, chance = recipe.values, recipe.chance
    prompt, output = draws.SHAREGPT_PROMPT.mean(), draws.SHAREGPT_OUTPUT.mean()
    shared = int(values["shared"]) // BLOCK
    groups = [recipe.fresh(shared) for _ in range(int(values["groups"]))]
    whole = prompt + values["share"] * shared * BLOCK
    arrivals = draws.Arrivals(chance, recipe.rate(whole, prompt, output))
    while True:
        tokens = draws.SHAREGPT_PROMPT.draw(chance)
        ids: tuple[int, ...] = ()
        if chance.random() < values["share"]:
            ids = chance.choice(groups)
            tokens += shared * BLOCK
        yield Call(arrivals.next(), tokens, draws.SHAREGPT_OUTPUT.draw(chance), ids=ids)


def _prefix(recipe: Recipe) -> Iterator[Call]:
    values, chance = recipe.values, recipe.chance
    shared, own = int(values["shared"]) // BLOCK, int(values["own"])
    groups = [recipe.fresh(shared) for _ in range(int(values["groups"]))]
    arrivals = draws.Arrivals(chance, recipe.rate(shared * BLOCK + own, own, values["output"]), values["cv"])
    while True:
        output = draws.log_normal(chance, values["output"], values["output_cv"])
        yield Call(arrivals.next(), shared * BLOCK + own, output, ids=chance.choice(groups))


def _sessions(recipe: Recipe) -> Iterator[list[Call]]:
    """Whole conversations, by the time of their first turn."""
    values, chance = recipe.values, recipe.chance
    turns = (1.0 + values["turns"]) / 2
    added, output = values["prompt"], values["output"]
    context = values["shared"] + (added + output) * (turns + 1) / 2
    rate = recipe.rate(context, added, output) / turns
    systems = [recipe.fresh(int(values["shared"]) // BLOCK) for _ in range(int(values["systems"]))]
    arrivals, number = draws.Arrivals(chance, rate, values["cv"]), 0
    while True:
        at, ids, tokens, calls = arrivals.next(), chance.choice(systems), int(values["shared"]) // BLOCK * BLOCK, []
        number += 1
        gap = None
        for _ in range(chance.randint(1, int(values["turns"]))):
            tokens += draws.log_normal(chance, added, values["prompt_cv"])
            said = draws.log_normal(chance, output, values["output_cv"])
            ids += recipe.fresh(tokens // BLOCK - len(ids))
            calls.append(Call(at, tokens, said, ids=ids, session=number, gap=gap))
            tokens += said
            ids += recipe.fresh(tokens // BLOCK - len(ids))
            gap = round(chance.expovariate(1.0 / values["gap"]) * 1e9) if values["gap"] else 0
            at += gap  # released at the end of this turn plus the gap; not before
        yield calls


def _lengths(recipe: Recipe) -> Iterator[Call]:
    rows = read_lengths(recipe.file)
    prompt = sum(row[0] for row in rows) / len(rows)
    output = sum(row[1] for row in rows) / len(rows)
    arrivals = draws.Arrivals(recipe.chance, recipe.rate(prompt, prompt, output), recipe.values["cv"])
    number = 0
    while True:
        tokens, said, route = rows[number % len(rows)]
        number += 1
        yield Call(arrivals.next(), tokens, said, route=route)


def _servegen(recipe: Recipe) -> Iterator[Call]:
    values = recipe.values
    drawn = clients.draw(recipe.file, recipe.chance, values["start"], values["seconds"] or SECONDS, values["scale"])
    return iter(drawn)


COMMON: Mapping[str, float] = {"rate": 0.0, "load": LOAD, "seconds": SECONDS, "requests": 0.0}
LENGTHS: Mapping[str, float] = {"prompt": 1000.0, "prompt_cv": 1.0, "output": 200.0, "output_cv": 1.0}
SESSIONS: Mapping[str, float] = {
    **LENGTHS, "prompt": 200.0, "cv": 1.5, "turns": 8.0, "gap": 10.0, "systems": 8.0, "shared": 600.0,
}  # fmt: skip
Maker = Callable[[Recipe], Iterator[Call]] | Callable[[Recipe], Iterator[list[Call]]]
GENERATORS: Mapping[str, tuple[Maker, Mapping[str, float]]] = {
    "poisson": (_poisson, {**LENGTHS, "cv": 1.0}),
    "gamma": (_poisson, {**LENGTHS, "cv": 2.0}),
    "sharegpt": (_sharegpt, {"share": 0.3, "groups": 64.0, "shared": 512.0}),
    "prefix": (
        _prefix,
        {"groups": 150.0, "shared": 6000.0, "own": 1200.0, "output": 1000.0, "output_cv": 0.0, "cv": 1.0},
    ),
    "sessions": (_sessions, SESSIONS),
    "agents": (
        _sessions,
        {**SESSIONS, "turns": 30.0, "gap": 2.0, "prompt": 300.0, "output": 110.0, "systems": 2.0, "shared": 1300.0},
    ),
    "lengths": (_lengths, {"cv": 1.0}),
    "servegen": (_servegen, {"start": 0.0, "scale": 1.0}),
}
"""Name -> how, and its parameters with their defaults."""
TOKENS = (1.0, float(TOKENS_MAX))
BOUNDS = {
    "prompt": TOKENS, "output": TOKENS, "own": TOKENS, "shared": (0.0, float(TOKENS_MAX)),
    "cv": (0.01, 100.0), "prompt_cv": (0.0, 100.0), "output_cv": (0.0, 100.0), "share": (0.0, 1.0),
    "turns": (1.0, 10_000.0), "groups": (1.0, 1e6), "systems": (1.0, 1e6), "load": (0.001, 1000.0),
    "scale": (0.001, 1e6), "rate": (0.0, 1e6), "seconds": (0.0, 366 * 86_400.0),
}  # fmt: skip
"""Parameter -> least and most; any other is 0 to CALLS_MAX."""
WITH_FILE = ("lengths", "servegen")


def generate(spec: str, seed: int, capacity: Capacity) -> Workload:
    """The workload of `generate:NAME,key=value,...`. Raises BadWorkload with the nearest known name."""
    maker, values, file = parsed(spec)
    recipe = Recipe(values, random.Random(f"{spec} {seed}"), capacity, file)
    calls: list[Call] = []
    for made in maker(recipe):
        some = made if isinstance(made, list) else [made]
        if recipe.over(len(calls), some[0].at):
            break
        calls += some
    if values["requests"]:
        del calls[int(values["requests"]) :]
    if not calls:
        raise BadWorkload(f"{spec} makes no request: raise rate, load or seconds")
    calls.sort(key=_by_time)
    return Workload(spec, calls, BLOCK)


def parsed(spec: str) -> tuple[Maker, Values, str]:
    """How, with which parameters, from which file. Raises BadWorkload with the nearest known name."""
    name, *pairs = spec.removeprefix(PREFIX).split(",")
    if name not in GENERATORS:
        raise BadWorkload(f"there is no generator {name!r}{_near(name, GENERATORS)}")
    maker, own = GENERATORS[name]
    values, file = _values(name, pairs, {**COMMON, **own})
    return maker, values, file


def _values(name: str, pairs: list[str], known: Mapping[str, float]) -> tuple[Values, str]:
    values, file = dict(known), ""
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if key == "file" and name in WITH_FILE:
            file = text
            continue
        if key not in known or not equals:
            raise BadWorkload(f"generator {name!r} has no parameter {key!r}{_near(key, known)}")
        try:
            values[key] = float(text)
        except ValueError:
            raise BadWorkload(f"parameter {key!r} of {name!r}: expected a number, found {text!r}") from None
        least, most = BOUNDS.get(key, (0.0, float(CALLS_MAX)))
        if not least <= values[key] <= most:
            raise BadWorkload(f"parameter {key!r} of {name!r}: expected {least:g} to {most:g}, found {text!r}")
    if name in WITH_FILE and not file:
        raise BadWorkload(f"generator {name!r} needs file=PATH")
    return values, file


def _near(word: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def _by_time(call: Call) -> int:
    return call.at
