"""The instances of a simulated cluster."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isochrone.simulator.experts import Experts
from isochrone.simulator.requests import MODEL
from isochrone.simulator.unloaded import carries
from isochrone.simulator.workload import BadWorkload, Call
from isochrone.twin.profiles import PROFILES, Profile
from isochrone.twin.schedule import Limits

PREFILL, DECODE = "prefill", "decode"
"""What instances serve that compute only prompts, or only answers. (Others serve MODEL.)"""
INSTANCES_MAX = 10_000
"""Of one simulated cluster."""


@dataclass(frozen=True, slots=True)
class Member:
    """One instance: what it is, and how slow (1: as its profile)."""

    id: str
    profile: Profile
    pace: float = 1.0
    engine: int | None = None
    """Number of the engine whose ranks step together, this instance being one of them; None: it steps alone."""
    model: str = MODEL
    """What it serves."""

    def limits(self, block_tokens: int) -> Limits:
        profile = self.profile
        return Limits(profile.max_num_seqs, profile.chunk_tokens, block_tokens, profile.kv_tokens // block_tokens)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All of them, in order of joining."""

    members: tuple[Member, ...]
    ranks: int = 1
    """Instances that are the data-parallel ranks of one engine."""
    experts: Experts | None = None
    """The model is a mixture of them."""

    def further(self, first: int, count: int) -> list[Member]:
        """Members that join later, like the first ones there are. `first`: number of the first of them."""
        like = self.members[0]
        name = like.id.rpartition("-")[0]
        made = [_member(f"{name}-{number}", like.profile, 1.0, number, self) for number in range(first, first + count)]
        return [dataclasses.replace(one, model=like.model) for one in made]

    @property
    def notes(self) -> list[str]:
        """What is particular about it, for the report."""
        notes = []
        if self.ranks > 1:
            notes.append(f"{self.ranks} instances each are the ranks of one engine: the slowest sets their steps")
        if self.experts is not None:
            engines = {one.engine if one.engine is not None else k for k, one in enumerate(self.members)}
            factors = [self.experts.factor(engine) for engine in engines]
            notes.append(f"uneven load of experts: steps take {min(factors):.2f} to {max(factors):.2f} times as long")
        return notes

    @property
    def paired(self) -> bool:
        """Prompts and answers are computed in pools of their own."""
        return self.members[0].model == PREFILL

    @property
    def reference(self) -> Profile:
        """The quickest member's profile: what "unloaded" means."""
        return min(self.members, key=_prefill_s).profile

    def capacity(self, prompt: float, uncached: float, output: float) -> float:
        """Requests a second at the knee of all instances together."""
        return sum(carries(one.profile, prompt, uncached, output) / one.pace for one in self.members)

    def check(self, calls: Sequence[Call]) -> None:
        """Say so before the run starts where a request fits nowhere."""
        rooms = {
            model: max(one.profile.kv_tokens // 512 * 512 for one in self.members if one.model == model)
            for model in {one.model for one in self.members}
        }
        room = min(rooms.values())
        too_long = [call for call in calls if call.prompt_tokens + call.output_tokens > room]
        if too_long:
            longest = max(call.prompt_tokens + call.output_tokens for call in too_long)
            raise BadWorkload(
                f"{len(too_long)} of {len(calls)} requests fit no instance: the longest has {longest:,} tokens with "
                f"its answer, the KV memory of the largest instance holds {room:,}"
            )


def fleet(
    profiles: Sequence[tuple[str, int]],
    slow: Mapping[int, float],
    changes: Mapping[str, int],
    ranks: int = 1,
    experts: Experts | None = None,
) -> Fleet:
    """`profiles`: names and how many of each. `slow`: index -> factor. `changes`: fields of all profiles to replace.
    `ranks`: so many instances in a row are one engine's."""
    kind = Fleet((), ranks, experts)
    members: list[Member] = []
    for name, count in profiles:
        if count % ranks:
            raise BadWorkload(f"{count} instances of {name} are no whole number of engines with {ranks} ranks")
        profile = dataclasses.replace(PROFILES[name], **changes)  # type: ignore[arg-type]
        for _ in range(count):
            index = len(members)
            members.append(_member(f"{name}-{index}", profile, slow.get(index, 1.0), index, kind))
    if not 0 < len(members) <= INSTANCES_MAX:
        raise BadWorkload(f"a cluster has 1 to {INSTANCES_MAX:,} instances, not {len(members)}")
    return dataclasses.replace(kind, members=tuple(members))


def in_pools(fleet: Fleet, prefill: int) -> Fleet:
    """The same with its first `prefill` instances for prompts, and the others for answers."""
    if not 0 < prefill < len(fleet.members):
        raise BadWorkload(f"of {len(fleet.members)} instances at least one computes prompts, and one answers")
    models = [PREFILL] * prefill + [DECODE] * (len(fleet.members) - prefill)
    members = [dataclasses.replace(one, model=model) for one, model in zip(fleet.members, models, strict=True)]
    return dataclasses.replace(fleet, members=tuple(members))


def _member(name: str, profile: Profile, pace: float, number: int, kind: Fleet) -> Member:
    """The number-th instance of a cluster of this kind."""
    engine = number // kind.ranks
    if kind.experts is not None:
        pace *= kind.experts.factor(engine)
    return Member(name, profile, pace, engine if kind.ranks > 1 else None)


def _prefill_s(member: Member) -> float:
    return member.profile.step.token_s * member.pace
