"""Metering of streamed answers, event by event."""

import json

import pytest

from isochrone.access import sse
from isochrone.access.sse import StreamMeter
from isochrone.nouns.request import Usage

DONE = b"data: [DONE]\n\n"


def event(value: object, name: str = "", spaced: bool = False) -> bytes:
    data = json.dumps(value) if spaced else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


def chat(delta: object, finish: str | None = None, index: int = 0, spaced: bool = False, **more: object) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event({**head, "choices": [choice]}, spaced=spaced)


def usage_event(**usage: object) -> bytes:
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage})


ROLE = chat({"role": "assistant", "content": ""})
WORD = chat({"content": " word"})
LAST = chat({"content": ""}, "stop", stop_reason=None)
USAGE = usage_event(prompt_tokens=9, total_tokens=14, completion_tokens=5, prompt_tokens_details={"cached_tokens": 8})


def metered(*events: bytes, cut_usage: bool = False) -> StreamMeter:
    meter = StreamMeter(cut_usage)
    assert b"".join(map(meter.feed, events)) + meter.rest() == b"".join(events)
    return meter


def test_one_whole_event_is_passed_without_a_copy() -> None:
    meter = StreamMeter()
    assert meter.feed(WORD) is WORD
    assert meter.output_tokens == 1


def test_an_event_waits_until_it_is_whole() -> None:
    """Case S-09 the other way round: nothing whole is held back, nothing half goes out."""
    meter = StreamMeter()
    assert meter.feed(WORD[:50]) == b""
    assert meter.feed(WORD[50:] + WORD[:10]) == WORD
    assert meter.output_tokens == 1
    assert meter.feed(WORD[10:-1]) == b""
    assert meter.feed(WORD[-1:]) == WORD
    assert meter.output_tokens == 2


def test_two_events_of_which_one_ends_with_crs_are_two_in_one_read_too() -> None:
    """Found by fuzzing."""
    two = WORD.replace(b"\n", b"\r") + WORD
    assert metered(two).output_tokens == 2
    assert metered(two[:90], two[90:]).output_tokens == 2


def test_a_whole_chat() -> None:
    meter = metered(ROLE, WORD, WORD, WORD, LAST, DONE)
    assert (meter.output_tokens, meter.whole, meter.failed) == (3, True, False)
    assert meter.usage == Usage(finish_reason="stop")


def test_the_role_alone_is_no_output() -> None:
    meter = StreamMeter()
    for first in (
        ROLE,
        chat({"role": "assistant", "content": None}),
        chat({"content": "", "role": "assistant"}, spaced=True),
        chat({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}, matched_stop=None),
    ):
        meter.feed(first)
        assert meter.output_tokens == 0
    meter.feed(chat({"role": "assistant", "content": "TGI says both at once"}))
    assert meter.output_tokens == 1


@pytest.mark.parametrize(
    "output",
    [
        WORD,
        chat({"content": " word"}, spaced=True),
        chat({"content": " word"}, token_ids=None),
        chat({"content": " word"}, matched_stop=None)[:-3] + b',"usage":null}\n\n',
        chat({"content": ""}),  # a token that ends within a character has no text yet
        chat({"content": ""}, spaced=True),
        chat({"reasoning_content": "hm"}),
        chat({"reasoning": "hm"}, spaced=True),
        chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        chat({"role": "assistant", "tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
        chat({"content": "end"}, "length"),
        chat({"content": 'quotes \\" "role":" "usage":{ "error" \n\n data: [DONE]'}),
        event({"choices": [{"index": 0, "text": "x", "logprobs": None, "finish_reason": None, "stop_reason": None}]}),
        event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}, spaced=True),
        WORD.replace(b"\n", b"\r\n"),
        WORD.replace(b"\n", b"\r"),
        event({"type": "response.output_text.delta", "delta": "x"}, "response.output_text.delta"),
        event({"type": "response.output_text.delta", "delta": "x"}),
        event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}, "content_block_delta"),
        b": comment\nid: 7\n" + WORD,
    ],
)
def test_events_with_one_token(output: bytes) -> None:
    assert metered(output).output_tokens == 1


@pytest.mark.parametrize(
    "other",
    [
        b": keep-alive\n\n", b"\n\n", b"retry: 10\n\n", b"data\n\n", b"data:\n\n", b"data: not json\n\n",
        b"data: {\n\n",
        b"data: 5\n\n", b"data: {}\n\n", b"data: \xff\n\n", b'data: {"choices":5}\n\n', b'data: {"choices":null}\n\n',
        b'data: {"choices":[]}\n\n', b"data: " + b"[" * 50_000 + b"\n\n",
        event({"type": "ping"}, "ping"), DONE, LAST,
    ],
    ids=range(17),
)  # fmt: skip
def test_events_without_output_pass(other: bytes) -> None:
    assert metered(other).output_tokens == 0


def test_token_ids_count_exactly() -> None:
    meter = metered(ROLE, chat({"content": "three"}, token_ids=[1, 2, 3]), chat({"content": ""}, "stop", token_ids=[4]))
    assert meter.output_tokens == 4


def test_several_choices_in_one_event() -> None:
    choices = [{"index": n, "delta": {"content": "x"}, "finish_reason": None, "seed": 1} for n in range(3)]
    assert metered(event({"choices": choices})).output_tokens == 3


def test_usage_corrects_the_count() -> None:
    meter = metered(ROLE, WORD, WORD, LAST, USAGE, DONE)
    assert meter.output_tokens == 5
    assert meter.usage == Usage(9, 5, 8, "stop")
    assert metered(WORD, WORD, usage_event(prompt_tokens=1, completion_tokens=1)).output_tokens == 1


def test_usage_in_every_event_of_one_choice_never_lowers_the_count() -> None:
    meter = StreamMeter()
    for tokens, index in ((1, 0), (1, 1), (2, 0)):
        part = chat({"content": "x"}, index=index)[:-3] + b',"usage":{"completion_tokens":%d}}\n\n' % tokens
        meter.feed(part)
    assert meter.output_tokens == 3


def test_a_usage_event_that_we_asked_for_is_cut_out() -> None:
    """Case S-02."""
    events = [ROLE, WORD, LAST, USAGE, DONE]
    cut = StreamMeter(cut_usage=True)
    assert [cut.feed(each) for each in events] == [ROLE, WORD, LAST, b"", DONE]
    assert cut.usage == Usage(9, 5, 8, "stop")
    together = StreamMeter(cut_usage=True)
    assert together.feed(b"".join(events)) == ROLE + WORD + LAST + DONE
    kept = StreamMeter()
    assert kept.feed(b"".join(events)) == b"".join(events)


def test_only_the_usage_event_is_cut() -> None:
    beside_output = chat({"content": "x"})[:-3] + b',"usage":{"completion_tokens":1}}\n\n'
    empty = event({"choices": [], "prompt_filter_results": []})
    null = event({"choices": [], "usage": None})
    metered(beside_output, empty, null, cut_usage=True)


def test_errors_are_seen() -> None:
    error = event({"error": {"message": "boom", "type": "InternalServerError", "param": None, "code": 500}})
    meter = metered(WORD, error, DONE)
    assert (meter.failed, meter.whole) == (True, True)
    assert metered(event({"object": "error", "message": "boom", "code": 500})).failed
    assert metered(event({"type": "error", "error": {"type": "api_error", "message": "x"}}, "error")).failed
    assert not metered(event({"choices": [{"delta": {"content": "x"}}], "error": None})).failed


def test_responses() -> None:
    text = event({"type": "response.output_text.delta", "delta": "x"}, "response.output_text.delta")
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 7}
    whole = {"id": "r", "status": "completed", "usage": usage, "error": None}
    created = event(
        {"type": "response.created", "response": {**whole, "status": "in_progress", "usage": None}}, "response.created"
    )
    meter = metered(created, text, text, event({"type": "response.completed", "response": whole}, "response.completed"))
    assert (meter.output_tokens, meter.whole, meter.failed) == (7, True, False)
    assert meter.usage == Usage(9, 7, 4, "stop")
    cut_short = {**whole, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    meter = metered(text, event({"type": "response.incomplete", "response": cut_short}, "response.incomplete"))
    assert meter.whole
    assert meter.usage is not None
    assert meter.usage.finish_reason == "length"
    meter = metered(event({"type": "response.failed", "response": {**whole, "status": "failed"}}, "response.failed"))
    assert (meter.whole, meter.failed) == (True, True)


def test_messages() -> None:
    start = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 10, "output_tokens": 0}}}
    delta = event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}, "content_block_delta")
    end = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 6}}
    stop = event({"type": "message_stop"}, "message_stop")
    meter = metered(event(start, "message_start"), delta, delta)
    assert (meter.output_tokens, meter.whole) == (2, False)
    meter = metered(event(start, "message_start"), delta, delta, event(end, "message_delta"), stop)
    assert (meter.output_tokens, meter.whole) == (6, True)
    assert meter.usage == Usage(10, 6, None, "length")


def test_an_unfinished_stream_is_not_whole() -> None:
    """Case S-04: what ends without its last event is broken off."""
    assert not metered(ROLE, WORD, LAST).whole


def test_a_last_event_without_its_blank_line_counts_at_the_end() -> None:
    meter = StreamMeter()
    assert meter.feed(WORD + b"data: [DONE]\n") == WORD
    assert not meter.whole
    assert meter.rest() == b"data: [DONE]\n"
    assert meter.whole
    assert meter.rest() == b""


def test_an_endless_event_passes_on_unmetered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 100)
    meter = StreamMeter(cut_usage=True)
    assert meter.feed(WORD + b"data: " + b"x" * 94) == WORD
    assert meter.feed(b"x") == b"data: " + b"x" * 95
    assert meter.feed(USAGE) is USAGE
    assert (meter.output_tokens, meter.usage, meter.rest()) == (1, None, b"")
