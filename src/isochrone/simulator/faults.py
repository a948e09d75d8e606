"""What goes wrong, and when: a list of faults, from a file or drawn.

A faults file is YAML (or JSON), a list of

    - {at: 30, fault: slow, instance: 3, factor: 2.5, until: 90}
    - {at: 40, fault: dead, instance: h100-8b-0, until: 60}
    - {at: 50, fault: scale-in, instance: 1}
    - {at: 50, fault: scale-out, count: 2}

`at` and `until` are seconds from the start; instances are named by id or by number from 0. Without `until` a fault
lasts to the end.
"""

from collections.abc import Sequence
from difflib import get_close_matches

import msgspec
import yaml

from isochrone.simulator.workload import BadWorkload

FAULTS = {
    "slow": "every step takes `factor` times as long",
    "dead": "the process is gone: running answers are lost, connections refused; it comes back empty",
    "hung": "accepts and never answers; running answers stop",
    "wedged": "the same, and heartbeats and metrics are answered as if nothing were wrong; its figures stand still",
    "busy": "answers 503 to everything new",
    "broken": "answers 500 to everything new",
    "unreachable": "a partition: heartbeats and scrapes time out, new connections too; running answers go on",
    "stale": "metrics are not refreshed",
    "cache-cleared": "the prefix cache is emptied; at once, `until` means nothing",
    "scale-in": "the instance is withdrawn: it finishes what it has and goes",
    "scale-out": "`count` more instances of the first profile join",
}
"""Name -> what happens."""
MODES = frozenset({"dead", "hung", "wedged", "busy", "broken", "unreachable"})
"""Faults in which an instance behaves differently to new requests."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file. Seconds."""

    at: float
    fault: str
    instance: str | int | None = None
    until: float | None = None
    factor: float = 2.0
    count: int = 1


def read_faults(path: str) -> list[Fault]:
    """The file's faults, by time. Raises BadWorkload with the number of the wrong entry."""
    try:
        with open(path, encoding="utf-8") as file:
            entries = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadWorkload(f"{path} cannot be read: {error}") from None
    if not isinstance(entries, list):
        raise BadWorkload(f"{path}: expected a list of faults")
    return sorted((_fault(path, number, entry) for number, entry in enumerate(entries, 1)), key=_by_time)


def _fault(path: str, number: int, entry: object) -> Fault:
    where = f"{path}, fault {number}"
    try:
        fault = msgspec.convert(entry, Fault)
    except msgspec.ValidationError as error:
        raise BadWorkload(f"{where}: {error}") from None
    if fault.fault not in FAULTS:
        near = get_close_matches(fault.fault, FAULTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(FAULTS)}"
        raise BadWorkload(f"{where}: there is no fault {fault.fault!r}; {hint}")
    if fault.at < 0 or (fault.until is not None and fault.until <= fault.at):
        raise BadWorkload(f"{where}: `at` is 0 or more, and `until` comes after it")
    if fault.factor <= 0 or fault.count < 1:
        raise BadWorkload(f"{where}: `factor` is above 0 and `count` at least 1")
    if fault.instance is None and fault.fault != "scale-out":
        raise BadWorkload(f"{where}: say which `instance`")
    return fault


def check_instances(faults: Sequence[Fault], ids: Sequence[str]) -> None:
    """Every named instance is there."""
    for fault in faults:
        if fault.fault != "scale-out":
            name_of(fault, ids)


def name_of(fault: Fault, ids: Sequence[str]) -> str:
    """The id of the fault's instance."""
    named = fault.instance
    if isinstance(named, int):
        if 0 <= named < len(ids):
            return ids[named]
        raise BadWorkload(f"there is no instance {named}: they count from 0 to {len(ids) - 1}")
    if isinstance(named, str) and named in ids:
        return named
    raise BadWorkload(f"there is no instance {named!r}: they are called {ids[0]!r} and so on")


def _by_time(fault: Fault) -> float:
    return fault.at
