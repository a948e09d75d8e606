"""Chained hashes of a prompt's blocks, computed without a tokenizer.

Two prompts that begin alike have equal hashes for the blocks they share, whichever engine holds them. Block borders
depend on the offset alone: fine at the start, where shared system prompts end, and coarse far out, so that a long
prompt has tens of blocks and not thousands. Each hash is xxh3-64 of the block with the hash before it as seed, so it
stands for the block and everything in front of it. Token ids count four bytes each: a block of 512 bytes is 128 ids.
"""

from bisect import bisect_right
from itertools import accumulate, pairwise, repeat

import xxhash

FINE_BLOCK_BYTES = 512
"""Up to 16 KiB of text (about 4,000 tokens) ..."""
MIDDLE_BLOCK_BYTES = 2048
"""... then up to 128 KiB ..."""
COARSE_BLOCK_BYTES = 8192
"""... then to the end."""
BLOCKS_MAX = 1024
"""Blocks of one prompt. They reach 7.4 MiB, some two million tokens; what lies beyond is not hashed."""

BLOCK_SIZES = (
    *repeat(FINE_BLOCK_BYTES, 16 * 1024 // FINE_BLOCK_BYTES),
    *repeat(MIDDLE_BLOCK_BYTES, 112 * 1024 // MIDDLE_BLOCK_BYTES),
    *repeat(COARSE_BLOCK_BYTES, BLOCKS_MAX - 32 - 56),
)
"""Length of each block, in bytes."""
_ENDS = tuple(accumulate(BLOCK_SIZES))
_SLICES = tuple(slice(start, end) for start, end in pairwise((0, *_ENDS)))
_digest = xxhash.xxh3_64_intdigest


def block_end(k: int) -> int:
    """Where block `k` (from 0) ends, in bytes from the start of the hashed text."""
    return _ENDS[k]


def text_salt(model: str, cache_salt: str = "") -> int:
    """Start of a chain over text. Caches of different models, and of different cache salts, share nothing."""
    return _digest(f"text\0{model}\0{cache_salt}".encode(errors="surrogatepass"))


def ids_salt(model: str, cache_salt: str = "") -> int:
    """Start of a chain over token ids: never equal to one over text."""
    return _digest(f"ids\0{model}\0{cache_salt}".encode(errors="surrogatepass"))


def chain(salt: int, data: bytes) -> tuple[int, ...]:
    """The hash of every whole block of `data`."""
    count = bisect_right(_ENDS, len(data))
    digest, link = _digest, salt
    return tuple([link := digest(data[block], link) for block in _SLICES[:count]])
