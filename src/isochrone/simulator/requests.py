"""A workload's call as the gateway would read it, and as an engine would be sent it.

Sizes come as bytes of text, with a ratio to tokens that differs a little from prompt to prompt: the cluster has to
estimate, as in life. Blocks of the gateway's index are longer than an engine's; one that ends inside a shared block of
the workload counts as shared only where that whole block is.
"""

import random
from dataclasses import dataclass
from math import exp

from isochrone.kv.hashing import BLOCK_SIZES, BLOCKS_MAX
from isochrone.nouns.request import PromptSize, Request, Slo
from isochrone.simulator.unloaded import first_token_s
from isochrone.simulator.workload import Call
from isochrone.twin.profiles import Profile

MODEL = "simulated"
PATH = "/v1/chat/completions"
BYTES_PER_TOKEN = 4
"""Of the hashed text: a block of 512 bytes is 128 tokens."""
TEXT_BYTES_PER_TOKEN, TEXT_SIGMA = 4.4, 0.04
"""Of the text, and how much the logarithm of that varies."""
SALT_BITS = 40
"""Of a block's id; above them comes its copy's number."""
LONELY = 1 << 63
"""Hashes of the gateway's blocks that nobody shares count from here; shared ones stay below."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What counts as good: first token within ttft_s + ttft_factor x unloaded prefill, mean gap within tpot_s."""

    ttft_s: float = 2.0
    ttft_factor: float = 2.0
    tpot_s: float = 0.1

    def ttft_for(self, prompt_tokens: int, reference: Profile) -> float:
        return self.ttft_s + self.ttft_factor * first_token_s(reference, prompt_tokens)


TOLD = ("nothing", "slo", "shed")
"""What requests tell the cluster of their objective: nothing; the objective; and that they may be shed."""


class Requests:
    """Makes the two views of a call."""

    def __init__(self, block_tokens: int, seed: int, objective: Objective, told: str, reference: Profile) -> None:
        assert told in TOLD
        self._block_tokens = block_tokens
        self._chance = random.Random(f"sizes {seed}")
        self._mask = random.Random(f"salt {seed}").getrandbits(SALT_BITS) if seed else 0
        """Other names for blocks and sessions under each seed: what is placed by a hash then goes elsewhere."""
        self._objective, self._told, self._reference = objective, told, reference
        self._fresh = LONELY
        self._ends: list[int] = []
        """End of each block of the gateway's index, in tokens."""
        end = 0
        for size in BLOCK_SIZES[:BLOCKS_MAX]:
            end += size
            self._ends.append(end // BYTES_PER_TOKEN)

    def request(self, name: str, call: Call) -> Request:
        """For the cluster."""
        tokens = call.prompt_tokens
        text_bytes = tokens * TEXT_BYTES_PER_TOKEN * exp(self._chance.gauss(0.0, TEXT_SIGMA))
        return Request(
            id=name,
            model=MODEL,
            path=PATH,
            stream=True,
            size=PromptSize(text_bytes=max(1, round(text_bytes)), messages=1),
            blocks=self._blocks(call),
            hashed_bytes=tokens * BYTES_PER_TOKEN,
            route=call.route,
            session=f"{call.copy}-{call.session ^ self._mask}" if call.session >= 0 else "",
            slo=self._slo(call),
        )

    def hashes(self, call: Call) -> list[int]:
        """For an engine: ids of the blocks that others may have too."""
        mask = self._mask | call.copy << SALT_BITS
        return [one ^ mask for one in call.ids] if mask else list(call.ids)

    def _blocks(self, call: Call) -> tuple[int, ...]:
        ends, size, ids = self._ends, self._block_tokens, call.ids
        shared_tokens = len(ids) * size
        mask = self._mask | call.copy << SALT_BITS
        blocks = []
        for k, end in enumerate(ends):
            if end > shared_tokens:
                break
            blocks.append((ids[(end - 1) // size] ^ mask) * BLOCKS_MAX + k)
        whole = len(blocks)
        for end in ends[whole:]:
            if end > call.prompt_tokens:
                break
            whole += 1
        lonely = whole - len(blocks)
        self._fresh += lonely
        return (*blocks, *range(self._fresh - lonely, self._fresh))

    def _slo(self, call: Call) -> Slo | None:
        if self._told == "nothing":
            return None
        objective = self._objective
        return Slo(objective.ttft_for(call.prompt_tokens, self._reference), objective.tpot_s, self._told == "shed")
