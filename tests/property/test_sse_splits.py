"""Case S-01: whichever way the network cuts a stream, the same bytes go out and the same things are counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.access.sse import StreamMeter

ENDS = ("\n", "\r\n", "\r")


def stream(newline: str) -> bytes:
    """Korean, Cyrillic and an emoji of four bytes, in every kind of event."""
    lines = []
    for text in ("안녕하세요", " привет", " 😀", "", ' a\\n\\n\\"b'):
        choice = f'{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null}}'
        lines += [f'data: {{"id":"1","choices":[{choice}]}}', ""]
    lines[:0] = ['data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}', ""]
    lines += [": comment", "", "event: x", "id: 3", "data: 1", "data: 2", "", ""]
    lines += ['data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', ""]
    lines += ['data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":6}}', "", "data: [DONE]", "", ""]
    return newline.join(lines).encode()


def relay(pieces: list[bytes], cut_usage: bool) -> tuple[bytes, object]:
    meter = StreamMeter(cut_usage)
    out = b"".join(map(meter.feed, pieces)) + meter.rest()
    return out, (meter.output_tokens, meter.usage, meter.whole, meter.failed)


@pytest.mark.parametrize("newline", ENDS, ids=repr)
@pytest.mark.parametrize("cut_usage", [False, True])
def test_every_single_cut(newline: str, cut_usage: bool) -> None:
    whole = stream(newline)
    expected = relay([whole], cut_usage)
    assert expected[1][0] == 6  # type: ignore[index]
    assert (expected[0] == whole) is not cut_usage
    for cut in range(len(whole) + 1):
        assert relay([whole[:cut], whole[cut:]], cut_usage) == expected
    assert relay([whole[n : n + 1] for n in range(len(whole))], cut_usage) == expected


@given(st.data(), st.sampled_from(ENDS), st.booleans())
def test_any_cuts(data: st.DataObject, newline: str, cut_usage: bool) -> None:
    whole = stream(newline)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert relay(pieces, cut_usage) == relay([whole], cut_usage)


@given(
    st.lists(
        st.binary(max_size=30) | st.sampled_from([b"\n\n", b"\r\n\r\n", b"data: {", b"data: [DONE]\n", b"\r", b"\n"])
    )
)
def test_any_bytes_pass_unchanged_and_alike(pieces: list[bytes]) -> None:
    """Case S-12: nothing that comes in makes the meter fail, or change a byte."""
    whole = b"".join(pieces)
    out, counts = relay(pieces, False)
    assert out == whole
    assert relay([whole], False) == (whole, counts)
