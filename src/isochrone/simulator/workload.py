"""What arrives, and when: a list of calls, made by `formats.py` or `generators.py` and shaped by `shaping.py`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from isochrone.nouns.instant import Instant

CALLS_MAX = 10_000_000
"""Of one workload, salted copies included."""
TOKENS_MAX = 10_000_000
"""Tokens of one prompt or answer above which a workload's line is a mistake."""


class Call(msgspec.Struct, gc=False):
    """One request of a workload."""

    at: Instant
    """Nanoseconds from the start of the workload."""
    prompt_tokens: int
    output_tokens: int
    """How long the answer turns out. Nobody but the engine knows it beforehand."""
    route: str = "default"
    ids: tuple[int, ...] = ()
    """Prefix blocks in order: an id stands for its block and everything before it. Blocks are whole."""
    session: int = -1
    """Number of its conversation; -1: none."""
    gap: int | None = None
    """Nanoseconds from the end of the session's turn before to this one; None: not recorded, or the first turn."""
    copy: int = 0
    """Which salted copy of the workload it belongs to: prefixes and sessions of different copies are different."""


@dataclass(slots=True)
class Workload:
    """Calls in order of time."""

    name: str
    calls: list[Call]
    block_tokens: int = 16
    """Tokens of a prefix block, and of a block of the engines' KV memory."""
    notes: list[str] = field(default_factory=list)
    """What was done to it, for the report."""

    @property
    def seconds(self) -> float:
        """First to last arrival."""
        return (self.calls[-1].at - self.calls[0].at) / 1e9 if self.calls else 0.0


class BadWorkload(ValueError):
    """A workload that cannot be used, in words for whoever wrote it."""

    @classmethod
    def at_line(cls, path: str, line: int, field: str, expected: str, found: object) -> "BadWorkload":
        shown = repr(found)
        return cls(f"{path}, line {line}, field {field!r}: expected {expected}, found {shown[:80]}")


def without_lonely_tails(calls: Sequence[Call]) -> None:
    """Cut each call's ids behind the last one that another call has too: nobody will ever look for the rest.

    Engines and gateway lose nothing by it, since such blocks are counted all the same.
    """
    uses = Counter(block for call in calls for block in call.ids)
    for call in calls:
        ids = call.ids
        shared = len(ids)
        while shared and uses[ids[shared - 1]] == 1:
            shared -= 1
        if shared < len(ids):
            call.ids = ids[:shared]


def successors(calls: Iterable[Call]) -> dict[int, int]:
    """Position of a call -> position of the next turn of its session."""
    last: dict[tuple[int, int], int] = {}
    following: dict[int, int] = {}
    for position, call in enumerate(calls):
        if call.session < 0:
            continue
        key = (call.copy, call.session)
        if key in last:
            following[last[key]] = position
        last[key] = position
    return following
