"""The instances of a simulated cluster."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isochrone.simulator.unloaded import carries
from isochrone.simulator.workload import BadWorkload, Call
from isochrone.twin.profiles import PROFILES, Profile
from isochrone.twin.schedule import Limits

INSTANCES_MAX = 10_000
"""Of one simulated cluster."""


@dataclass(frozen=True, slots=True)
class Member:
    """One instance: what it is, and how slow (1: as its profile)."""

    id: str
    profile: Profile
    pace: float = 1.0

    def limits(self, block_tokens: int) -> Limits:
        profile = self.profile
        return Limits(profile.max_num_seqs, profile.chunk_tokens, block_tokens, profile.kv_tokens // block_tokens)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All of them, in order of joining."""

    members: tuple[Member, ...]

    @property
    def reference(self) -> Profile:
        """The quickest member's profile: what "unloaded" means."""
        return min(self.members, key=_prefill_s).profile

    def capacity(self, prompt: float, uncached: float, output: float) -> float:
        """Requests a second at the knee of all instances together."""
        return sum(carries(one.profile, prompt, uncached, output) / one.pace for one in self.members)

    def check(self, calls: Sequence[Call]) -> None:
        """Say so before the run starts where a request fits nowhere."""
        room = max(one.profile.kv_tokens // 512 * 512 for one in self.members)
        too_long = [call for call in calls if call.prompt_tokens + call.output_tokens > room]
        if too_long:
            longest = max(call.prompt_tokens + call.output_tokens for call in too_long)
            raise BadWorkload(
                f"{len(too_long)} of {len(calls)} requests fit no instance: the longest has {longest:,} tokens with "
                f"its answer, the KV memory of the largest instance holds {room:,}"
            )


def fleet(profiles: Sequence[tuple[str, int]], slow: Mapping[int, float], changes: Mapping[str, int]) -> Fleet:
    """`profiles`: names and how many of each. `slow`: index -> factor. `changes`: fields of all profiles to replace."""
    members: list[Member] = []
    for name, count in profiles:
        profile = dataclasses.replace(PROFILES[name], **changes)  # type: ignore[arg-type]
        for _ in range(count):
            index = len(members)
            members.append(Member(f"{name}-{index}", profile, slow.get(index, 1.0)))
    if not 0 < len(members) <= INSTANCES_MAX:
        raise BadWorkload(f"a cluster has 1 to {INSTANCES_MAX:,} instances, not {len(members)}")
    return Fleet(tuple(members))


def _prefill_s(member: Member) -> float:
    return member.profile.step.token_s * member.pace
