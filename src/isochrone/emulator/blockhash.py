"""Hashes of full blocks of token ids, chained: each stands for its block and all before it."""

from array import array
from collections.abc import Iterable

import xxhash


class BlockHashes:
    """Grows with the tokens. `hashes` holds one 64-bit value for each full block so far."""

    __slots__ = ("_block_bytes", "_last", "_rest", "hashes")

    def __init__(self, block_tokens: int, tokens: Iterable[int]) -> None:
        self.hashes: list[int] = []
        self._block_bytes = 4 * block_tokens
        self._last = 0
        self._rest = bytearray(array("I", tokens).tobytes())
        full = len(self._rest) // self._block_bytes * self._block_bytes
        for start in range(0, full, self._block_bytes):
            self._close(bytes(self._rest[start : start + self._block_bytes]))
        del self._rest[:full]

    def push(self, token: int) -> None:
        """One more token at the end."""
        self._rest += token.to_bytes(4, "little")
        if len(self._rest) == self._block_bytes:
            self._close(bytes(self._rest))
            self._rest.clear()

    def _close(self, block: bytes) -> None:
        self._last = xxhash.xxh64_intdigest(block, seed=self._last)
        self.hashes.append(self._last)
