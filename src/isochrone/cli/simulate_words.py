"""The words of `isochrone simulate`'s command line: workload, cluster, arms, settings, lists of numbers.

Each is refused with the option's name, what was found and what was expected or comes nearest.
"""

import math
import os
import random
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

import click
import msgspec

from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from isochrone.scheduling.parts import PARTS
from isochrone.scheduling.policies.admitted import SUFFIX
from isochrone.simulator.fleet import INSTANCES_MAX
from isochrone.simulator.generators import GENERATORS, PREFIX, parsed
from isochrone.simulator.shaping import Part
from isochrone.simulator.sweep import Arm
from isochrone.simulator.told_steps import ToldSteps
from isochrone.simulator.workload import BadWorkload
from isochrone.twin.profiles import PROFILES

INSTANCES = 8
"""Where neither --instances nor --profile says how many."""
TOLD_FACTOR_MIN, TOLD_FACTOR_MAX, TOLD_SPREAD_MAX = 0.01, 100.0, 2.0
"""Step times that are told: times the true ones, and the standard deviation of the logarithm between instances."""
INTERVAL_S_MIN = 0.001
"""Shortest interval that a setting may have: below, a run does little else."""


def unknown(kind: str, name: str, known: Iterable[str], option: str, also: Iterable[str] = ()) -> click.BadParameter:
    """There is no such thing; the nearest one is named, or all that are known. `also`: names too many to be listed."""
    names = list(known)
    near = get_close_matches(name, [*names, *also], n=1) or [one for one in names if name and name in one]
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    return click.BadParameter(f"there is no {kind} {name!r}; {hint}", param_hint=option)


def can_be_written(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """Say now, and not after an hour of runs, that a result can't be put there. As a callback of click's."""
    if path is not None:
        place = Path(path)
        if not os.access(place if place.exists() else place.parent, os.W_OK):
            raise click.BadParameter(f"{path!r} cannot be written")
    return path


def check_workload(spec: str) -> None:
    """A generator with its parameters, or a file that is there."""
    if spec.startswith(PREFIX):
        try:
            parsed(spec)
        except BadWorkload as error:
            raise click.BadParameter(str(error), param_hint="--workload") from None
    elif not Path(spec).is_file():
        folder = Path(spec).parent
        files = [str(folder / path.name) for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
        drawn = {name: f"{PREFIX}{name}" for name in GENERATORS}
        near = get_close_matches(spec, [*files, *drawn, *drawn.values()], n=1)
        hint = f"; did you mean {drawn.get(near[0], near[0])!r}?" if near else f"; drawn ones begin with {PREFIX!r}"
        raise click.BadParameter(f"there is no file {spec!r}{hint}", param_hint="--workload")


def parse_clusters(profiles: Sequence[str], instances: str | None) -> list[list[tuple[str, int]]]:
    """For each size of --instances: names of profiles, and how many of each."""
    counted = [_counted(value) for value in profiles]
    if instances is None:
        whole = all(count for _, count in counted)
        sizes = [sum(count for _, count in counted) if whole else INSTANCES]
    else:
        sizes = _whole_numbers(instances)
    return [_filled(counted, size) for size in sizes]


def _counted(value: str) -> tuple[str, int]:
    """NAME or NAME:COUNT; without a count it is 0."""
    name, colon, count = value.partition(":")
    if name not in PROFILES:
        raise unknown("profile", name, PROFILES, "--profile")
    if colon and not (count.isdecimal() and int(count) > 0):
        raise click.BadParameter(f"{value!r} is not NAME:COUNT, with a count of 1 or more", param_hint="--profile")
    return name, int(count) if colon else 0


def _filled(counted: Sequence[tuple[str, int]], size: int) -> list[tuple[str, int]]:
    """The one without a count gets what is left."""
    taken = sum(count for _, count in counted)
    open_ends = sum(not count for _, count in counted)
    if open_ends > 1:
        raise click.BadParameter("only one profile may go without a count", param_hint="--profile")
    if open_ends and size <= taken:
        raise click.BadParameter(f"{size} instances leave none without a count", param_hint="--profile")
    if not open_ends and size != taken:
        raise click.BadParameter(f"the counts make {taken}, --instances is {size}", param_hint="--profile")
    return [(name, count or size - taken) for name, count in counted]


def _whole_numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isdecimal() or not 0 < int(word) <= INSTANCES_MAX:
            raise click.BadParameter(
                f"{word!r}: expected a whole number from 1 to {INSTANCES_MAX:,}", param_hint="--instances"
            )
    return [int(word) for word in dict.fromkeys(words)]


def parse_numbers(text: str, option: str) -> list[float]:
    """Comma-separated numbers above 0, each once."""
    try:
        values = [float(one) for one in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < math.inf for value in values):
        raise click.BadParameter(f"{text!r}: expected numbers above 0, with commas between", param_hint=option)
    return list(dict.fromkeys(values))


def parse_window(text: str | None) -> Part:
    """START:END in seconds of the workload, either of which may be missing."""
    start, colon, end = (text or ":").partition(":")
    try:
        part = Part(float(start or 0.0), float(end) if end else None)
    except ValueError:
        part = Part(-1.0)
    if not colon or not 0 <= part.start_s < (math.inf if part.end_s is None else part.end_s):
        raise click.BadParameter(f"{text!r}: expected START:END in seconds, as in 600:1200", param_hint="--window")
    return part


def parse_arms(names: Sequence[str], without: Sequence[str], settings: Settings, changes: Sequence[str]) -> list[Arm]:
    """Policies, `all` of them, and equal-cost with parts left out. A policy whose own system reads metrics at an
    interval of its own gets it, unless one of the `changes` (NAME=VALUE) sets it for all."""
    known = policies.names()
    wanted: list[str] = []
    for name in _listed(names):
        wanted += _everything(known) if name == "all" else [name]
    if not wanted:
        raise click.BadParameter("expected at least one policy", param_hint="--policy")
    interval_set = any(pair.startswith("scrape_interval_s=") for pair in changes)
    arms = []
    for name in dict.fromkeys(wanted):
        if not policies.exists(name):
            admitted = [one + SUFFIX for one in known if policies.exists(one + SUFFIX)]
            raise unknown("policy", name, known, "--policy", admitted)
        interval_s = None if interval_set else policies.make(name, random.Random(0)).scrape_interval_s
        arms.append(Arm(name, name, {} if interval_s is None else {"scrape_interval_s": interval_s}))
    for part in PARTS if "all" in without else _listed(without):
        if part not in PARTS:
            raise unknown("part", part, PARTS, "--without")
        arms.append(Arm(f"equal-cost without {part}", "equal-cost", {"without": settings.without | {part}}))
    return arms


def told_arms(told: Iterable[str], settings: Settings) -> list[Arm]:
    """Equal-cost with step times that it is told, for each FACTOR or FACTOR:SPREAD."""
    kept = {"without": settings.without | {"steps"}}
    steps = [_told_steps(text) for text in dict.fromkeys(told)]
    return [Arm(f"equal-cost told step times {one.words}", "equal-cost", kept, one) for one in steps]


def _told_steps(text: str) -> ToldSteps:
    factor, colon, spread = text.partition(":")
    try:
        told = ToldSteps(float(factor), float(spread) if colon else 0.0)
    except ValueError:
        told = ToldSteps(0.0)
    if not (TOLD_FACTOR_MIN <= told.factor <= TOLD_FACTOR_MAX and 0.0 <= told.spread <= TOLD_SPREAD_MAX):
        raise click.BadParameter(
            f"{text!r}: expected a factor from {TOLD_FACTOR_MIN:g} to {TOLD_FACTOR_MAX:g}, or FACTOR:SPREAD with a "
            f"spread from 0 to {TOLD_SPREAD_MAX:g}",
            param_hint="--step-times",
        )
    return told


def _everything(known: Sequence[str]) -> list[str]:
    """Ours, then each of the others as it is and inside our admission: what routing gains and what admission gains."""
    wanted = ["equal-cost"]
    for name in known:
        if name != "equal-cost":
            wanted += [name, name + SUFFIX] if policies.exists(name + SUFFIX) else [name]
    return wanted


def _listed(values: Sequence[str]) -> list[str]:
    """Repeated, or with commas."""
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def parse_settings(pairs: Sequence[str]) -> Settings:
    """NAME=VALUE of the core's settings, checked against their types."""
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if name not in fields:
            raise unknown("setting", name, fields, "--set")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
        try:
            values[name] = msgspec.json.decode(text.encode())
        except msgspec.DecodeError:
            values[name] = text
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise click.BadParameter(f"{error} (of {', '.join(pairs)})", param_hint="--set") from None
    _check_settings(settings, values)
    return settings


def _check_settings(settings: Settings, given: Iterable[str]) -> None:
    """What types do not tell."""
    if settings.policy != Settings().policy:
        raise click.BadParameter("policies are named by --policy", param_hint="--set policy")
    if settings.shadow is not None and not policies.exists(settings.shadow):
        raise unknown("policy", settings.shadow, policies.names(), "--set shadow")
    for part in settings.without - set(PARTS):
        raise unknown("part", part, PARTS, "--set without")
    for name in given:
        value = getattr(settings, name)
        least = INTERVAL_S_MIN if name.endswith("interval_s") else 0
        if isinstance(value, int | float) and not least <= value < math.inf:
            raise click.BadParameter(f"{value:g}: expected {least:g} or more", param_hint=f"--set {name}")
