"""Chained block hashes."""

import pytest
import xxhash

from isochrone.kv.hashing import BLOCK_SIZES, BLOCKS_MAX, block_end, chain, ids_salt, text_salt

KIB = 1024


def test_borders_grow_with_the_offset() -> None:
    ends = [block_end(k) for k in range(BLOCKS_MAX)]
    assert ends[:3] == [512, 1024, 1536]
    assert 16 * KIB in ends
    assert ends[ends.index(16 * KIB) + 1] == 18 * KIB
    assert 128 * KIB in ends
    assert ends[ends.index(128 * KIB) + 1] == 136 * KIB
    assert [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)] == list(BLOCK_SIZES)


@pytest.mark.parametrize(
    ("size", "blocks"), [(0, 0), (511, 0), (512, 1), (1023, 1), (16 * KIB, 32), (18 * KIB - 1, 32)]
)
def test_only_whole_blocks_count(size: int, blocks: int) -> None:
    assert len(chain(0, b"x" * size)) == blocks


def test_text_beyond_the_last_block_is_not_hashed() -> None:
    assert len(chain(1, bytes(block_end(BLOCKS_MAX - 1) + 10 * KIB))) == BLOCKS_MAX


def test_each_hash_stands_for_all_text_before_it() -> None:
    text = bytes(range(256)) * 20
    whole = chain(5, text)
    assert chain(5, text[:2048]) == whole[:4]
    changed = bytearray(text)
    changed[600] ^= 1
    other = chain(5, bytes(changed))
    assert other[0] == whole[0]
    assert not set(other[1:]) & set(whole[1:])


def test_a_hash_is_xxh3_seeded_with_the_one_before() -> None:
    """Pinned: indexes of several gateways must agree, and a warm start must still fit."""
    text = b"a" * 512 + b"b" * 512
    first = xxhash.xxh3_64_intdigest(b"a" * 512, 7)
    assert chain(7, text) == (first, xxhash.xxh3_64_intdigest(b"b" * 512, first))


def test_equal_blocks_at_different_places_differ() -> None:
    assert len(set(chain(0, bytes(100 * KIB)))) == len(chain(0, bytes(100 * KIB)))


def test_models_salts_and_kinds_share_nothing() -> None:
    salts = {
        text_salt("a"),
        text_salt("b"),
        text_salt("a", "s"),
        text_salt("a", "t"),
        ids_salt("a"),
        ids_salt("a", "s"),
    }
    assert len(salts) == 6
    data = bytes(4096)
    chains = [set(chain(salt, data)) for salt in salts]
    assert len(set.union(*chains)) == sum(map(len, chains))
