"""Block hashes stand for a block and all before it, however the tokens came."""

from hypothesis import given
from hypothesis import strategies as st

from isochrone.emulator.blockhash import BlockHashes

tokens = st.lists(st.integers(0, 2**27), max_size=60)


@given(tokens=tokens, known=st.integers(0, 60))
def test_pushed_one_by_one_or_given_at_once_is_the_same(tokens: list[int], known: int) -> None:
    grown = BlockHashes(16, tokens[:known])
    for token in tokens[known:]:
        grown.push(token)
    assert grown.hashes == BlockHashes(16, tokens).hashes
    assert len(grown.hashes) == len(tokens) // 16


def test_a_block_behind_another_prefix_is_another_block() -> None:
    tail = list(range(16))
    assert BlockHashes(16, [1] * 16 + tail).hashes[1] != BlockHashes(16, [2] * 16 + tail).hashes[1]
