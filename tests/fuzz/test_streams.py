"""The machines of a stream, `access/sse.py` and `access/splice.py`: cut anywhere, moved anywhere, fed anything."""

from hypothesis import given
from hypothesis import strategies as st

from isochrone.access.sse import StreamMeter
from tests.property import test_splice as splice
from tests.support.fuzzing import cuts, fuzzed, pieces

# The statements are those of tests/property; here they are held to many more examples.
test_a_stream_that_moves_says_the_same = fuzzed(
    given(splice.bodies(), st.data())(splice.test_cut_anywhere_it_says_the_same.hypothesis.inner_test)  # type: ignore[attr-defined]
)
test_undisturbed_streams_are_what_clients_would_have_seen = fuzzed(
    given(splice.bodies(), splice.sizes, splice.cuts)(
        splice.test_undisturbed_it_is_what_the_client_would_have_seen.hypothesis.inner_test  # type: ignore[attr-defined]
    )
)
test_no_bytes_break_a_splice = fuzzed(
    given(
        st.lists(st.sampled_from(splice.PIECES) | st.binary(max_size=8)),
        st.lists(st.sampled_from(splice.PIECES)),
        st.booleans(),
    )(splice.test_no_bytes_break_it.hypothesis.inner_test)  # type: ignore[attr-defined]
)

EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"content":"\xed\x95\x9c"},"logprobs":null,"finish_reason":null}]}',
    b'data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}', b"data: [DONE]", b": comment",
    b"event: error", b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
    b'data: {"error":{"message":"x"}}', b"event: content_block_delta", b"event: message_stop", b"data: {", b"data:",
    b"id: 1", b'data: {"usage":{}}', b"data: 1",
]  # fmt: skip
ENDS = [b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"\r\r", b"", b"\n\r\n"]
streams = st.lists(st.sampled_from(EVENTS) | st.sampled_from(ENDS) | st.binary(max_size=5), max_size=24).map(b"".join)


def metered(parts: list[bytes], cut_usage: bool) -> tuple[bytes, object]:
    meter = StreamMeter(cut_usage)
    out = b"".join(map(meter.feed, parts)) + meter.rest()
    return out, (meter.output_tokens, meter.usage, meter.whole, meter.failed)


@fuzzed
@given(streams, cuts, st.booleans())
def test_a_meter_counts_alike_and_changes_nothing(stream: bytes, places: list[int], cut_usage: bool) -> None:
    out, counts = metered([stream] if stream else [], cut_usage)
    assert metered(pieces(stream, places), cut_usage) == (out, counts)
    assert out == stream or cut_usage
