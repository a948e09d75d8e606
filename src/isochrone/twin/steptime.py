"""How long one step of an engine takes.

A step (one forward pass over everything that is batched together) costs

    t = max(floor, a + b*T) + k*K + q*A + o         seconds

T tokens in the batch (decode rows + prefilled tokens), K KV tokens that the decode rows read, A attention pairs of
the prefilled tokens: a chunk of n tokens that stands behind c tokens of context has n*(c + n/2) pairs. The floor is
the time to read the weights from memory, b the matrix work of a token, k the bytes of KV of a token over the memory's
bandwidth, o what the host adds in each step. Below the knee, floor/b tokens, further decode rows are nearly free: it
is K that grows.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """The parameters of one engine on one device. All in seconds."""

    floor_s: float
    """Reading the weights once."""
    base_s: float
    """a: constant part where the matrix work is above the floor."""
    token_s: float
    """b: matrix work of one token."""
    kv_token_s: float
    """k: reading the KV of one token of context for one decode row."""
    pair_s: float
    """q: one pair of tokens in the attention of a prefill."""
    overhead_s: float
    """o: scheduling, launching, sampling."""

    def seconds(self, tokens: int, kv_read: int, pairs: float) -> float:
        """Duration of a step with `tokens` in the batch, `kv_read` KV tokens read by decode rows and `pairs` pairs."""
        matrix_s = self.base_s + self.token_s * tokens
        if matrix_s < self.floor_s:
            matrix_s = self.floor_s
        return matrix_s + self.kv_token_s * kv_read + self.pair_s * pairs + self.overhead_s
