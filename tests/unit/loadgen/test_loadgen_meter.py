"""The stream meter against a plain reading of the same bytes, however they are cut."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.loadgen.meter import BadStream, StreamMeter, whole_answer_usage

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def chat_stream(texts: list[str], *, usage: bool = True, spaced: bool = False) -> bytes:
    events: list[object] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    events += [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage:
        events.append({"choices": [], "usage": USAGE})
    dumped = [json.dumps(event) if spaced else msgspec.json.encode(event).decode() for event in events]
    return b"".join(f"data: {event}\n\n".encode() for event in [*dumped, "[DONE]"])


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[low:high] for low, high in itertools.pairwise(bounds)]


@given(
    st.lists(st.text(max_size=8), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=8),
    st.booleans(),
)
def test_any_split_gives_the_same_reading(texts: list[str], places: list[int], spaced: bool) -> None:
    meter = StreamMeter()
    pieces = cut(chat_stream(texts, spaced=spaced), places)
    for number, piece in enumerate(pieces):
        meter.feed(piece, float(number))
    assert meter.events == sum(text != "" for text in texts)
    assert meter.done
    assert not meter.failed
    assert meter.usage() == (9, 3, 4)
    assert (meter.first_at is None) == (meter.events == 0)


def test_times_are_those_of_the_first_and_last_text() -> None:
    meter = StreamMeter()
    pieces = [piece + b"\n\n" for piece in chat_stream(["a", "b", "c"]).split(b"\n\n")[:-1]]
    for number, piece in enumerate(pieces):
        meter.feed(piece, float(number))
    assert (meter.first_at, meter.last_at) == (1.0, 3.0)


def test_completions_spell_text_differently() -> None:
    meter = StreamMeter()
    meter.feed(b'data: {"choices":[{"text":"one"}]}\n\ndata: {"choices":[{"text":""}]}\n\n', 1.0)
    assert meter.events == 1


def test_text_that_looks_like_protocol_counts_once() -> None:
    meter = StreamMeter()
    tricky = ['"content":"', "data: [DONE]", '"usage":{', 'data: {"error"', "plain"]
    for piece in chat_stream(tricky)[: -len(b"data: [DONE]\n\n")].split(b"\n\n"):
        meter.feed(piece + b"\n\n", 1.0)
    assert meter.events == len(tricky)
    assert not meter.done
    assert not meter.failed
    assert meter.usage() == (9, 3, 4)


def test_no_usage_is_unknown_not_zero() -> None:
    meter = StreamMeter()
    meter.feed(chat_stream(["a"], usage=False), 1.0)
    assert meter.usage() == (None, None, None)


def test_error_inside_a_stream() -> None:
    meter = StreamMeter()
    meter.feed(b'data: {"error":{"message":"engine died"}}\n\n', 1.0)
    assert meter.failed


def test_an_endless_event_is_refused() -> None:
    meter = StreamMeter()
    with pytest.raises(BadStream, match="longer"):
        meter.feed(b"data: {" + b"x" * (2 << 20), 1.0)


def test_usage_of_a_whole_answer() -> None:
    body = msgspec.json.encode({"choices": [{"message": {"content": "x"}}], "usage": USAGE})
    assert whole_answer_usage(body) == (9, 3, 4)
    with pytest.raises(BadStream):
        whole_answer_usage(b"<html>")
