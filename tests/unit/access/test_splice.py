"""The splice event by event. That text stays the same is the business of tests/property/test_splice.py."""

import json
from typing import Any

import pytest

from isochrone.access import splice as module
from isochrone.access.contract import Contract, Promise
from isochrone.access.splice import Splice

DONE = b"data: [DONE]\n\n"
CONTRACT = Contract(promise=Promise.EXACT, chat=True, params=b'"model":"m"')


def event(*choices: object, **more: object) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**head, "choices": choices, **more}, separators=(",", ":")).encode() + b"\n\n"


def choice(delta: object, finish: str | None = None, ids: object = None, **more: object) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more, "token_ids": ids}


ROLE = event(
    {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}, prompt_token_ids=[4, 5]
)
WORD = event(choice({"content": " word"}, ids=[7]))
LAST = event(choice({"content": " end"}, "length", [8], stop_reason=None))


def fed(*events: bytes, contract: Contract = CONTRACT) -> tuple[Splice, bytes]:
    splice = Splice(contract, True)
    return splice, b"".join(map(splice.feed, events))


def test_ids_are_cut_out() -> None:
    _, out = fed(ROLE, WORD, LAST, DONE)
    assert out == b"".join([
        ROLE.replace(b"[4,5]", b"null"), WORD.replace(b"[7]", b"null"), LAST.replace(b"[8]", b"null"), DONE,
    ])  # fmt: skip


@pytest.mark.parametrize("text", ['"token_ids":[1]', '\\"', '"},"logprobs":null', 'a","b', "]}]}\n\n", '"choices":['])
def test_text_that_looks_like_json_passes(text: str) -> None:
    tricky = event(choice({"content": text}, ids=[7]))
    splice, out = fed(ROLE, tricky, tricky)
    cut = tricky.replace(b'"token_ids":[7]}]}\n\n', b'"token_ids":null}]}\n\n')
    assert out.endswith(cut + cut)
    splice.turn()
    assert splice.body(9) == b'{"model":"m","prompt":[4,5,7,7],"max_tokens":9,"stream":true,' + (
        b'"stream_options":{"include_usage":true},"return_token_ids":true}'
    )


@pytest.mark.parametrize(
    ("delta", "why"),
    [
        ({"reasoning": "hm"}, "reasoning"),
        ({"reasoning_content": "hm"}, "reasoning_content"),
        ({"tool_calls": [{"index": 0}]}, "tool_calls"),
        ({"content": "x", "refusal": "no"}, "refusal"),
    ],
)
def test_a_parser_in_mid_state_ends_resuming(delta: object, why: str) -> None:
    splice, out = fed(ROLE, event(choice(delta, ids=[1])), WORD)
    assert why in splice.refusal()
    assert splice.kept_bytes < 100
    assert b'_ids":[' not in out, "ids stay cut out"


def test_events_that_are_there_for_their_ids_alone_are_cut_out() -> None:
    """vLLM sends them where its parser swallows a token and ids were asked for."""
    nothing = event(choice({}, ids=[9]))
    _, out = fed(ROLE, nothing, WORD, event(choice({"reasoning": "x"}, ids=[1])), nothing)
    assert b'"delta":{}' not in out
    _, out = fed(ROLE, event(choice({}, "stop", [])))
    assert b'"delta":{}' in out, "the last event is needed"


def test_text_without_ids_ends_resuming() -> None:
    splice, _ = fed(ROLE, event(choice({"content": "x"})))
    assert "no token ids" in splice.refusal()


def test_another_form_of_events_ends_resuming() -> None:
    spaced = WORD.replace(b'"choices":[', b'"choices": [')
    splice, out = fed(spaced)
    assert "unknown form" in splice.refusal()
    assert b'"token_ids":null' in out


def test_an_error_event_is_kept_back_while_the_stream_may_go_on() -> None:
    error = b'data: {"error":{"message":"x"}}\n\n'
    splice, out = fed(ROLE, WORD, error, DONE)
    assert splice.gave_out
    assert splice.error_event == error
    assert not splice.whole
    assert out.endswith(WORD.replace(b"[7]", b"null"))
    splice, out = fed(ROLE, event(choice({"reasoning": "x"}, ids=[1])), error, DONE)
    assert not splice.gave_out
    assert out.endswith(error + DONE)


def test_only_the_last_words_are_missing() -> None:
    splice, _ = fed(ROLE, WORD, LAST)
    assert splice.refusal() == "its last token is out"
    assert splice.ending() == DONE
    assert splice.usage is not None
    assert (splice.usage.prompt_tokens, splice.usage.completion_tokens, splice.usage.finish_reason) == (2, 2, "length")
    wants = Contract(promise=Promise.EXACT, chat=True, wants_usage=True)
    splice, _ = fed(ROLE, WORD, LAST, contract=wants)
    ending = splice.ending()
    assert ending is not None
    assert b'"choices":[],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}}' in ending
    assert ending.endswith(DONE)
    splice, _ = fed(ROLE, WORD)
    assert splice.ending() is None


def test_all_tokens_are_out() -> None:
    """No continuation of no tokens."""
    splice, _ = fed(ROLE, WORD, WORD, contract=Contract(promise=Promise.EXACT, chat=True, max_tokens=2))
    assert splice.refusal() == "all its tokens are out"


@pytest.mark.parametrize(
    ("max_tokens", "context", "room"),
    [(10, 100, 8), (10, 9, 5), (10, None, 8), (None, 100, 96), (None, 4, 0), (None, None, 0)],
)
def test_room_on_the_next_instance(max_tokens: int | None, context: int | None, room: int) -> None:
    """Two tokens of prompt and two of output are there."""
    splice, _ = fed(ROLE, WORD, WORD, contract=Contract(promise=Promise.EXACT, chat=True, max_tokens=max_tokens))
    splice.turn()
    assert splice.room(context) == room


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_a_long_list_of_prompt_ids_is_dropped_as_it_comes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROMPT_IDS_BYTES_MAX", 300)
    long = ROLE.replace(b"[4,5]", json.dumps(list(range(2000)), separators=(",", ":")).encode())
    data = long + WORD
    splice = Splice(CONTRACT, True)
    out = b"".join(splice.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert out == (ROLE.replace(b"[4,5]", b"null") + WORD.replace(b"[7]", b"null"))
    assert splice.prompt_tokens == 2000
    assert splice.needs_body
    splice.turn()
    assert splice.needs_body
    assert not splice.take_prompt(b"no JSON")
    assert splice.take_prompt(b'{"count":2,"tokens":[4,5],"max_model_len":9}')
    assert b'"prompt":[4,5,7]' in splice.body(1)


def test_what_differs_from_what_was_delivered_is_not_sent() -> None:
    two = event(choice({"content": " two tokens"}, ids=[1, 2]))
    splice, _ = fed(ROLE, WORD, two)
    splice.turn()
    again = {"index": 0, "text": " two cows", "token_ids": [1], "finish_reason": None}
    assert splice.feed(event(again)) == b""
    assert splice.gave_out
    assert "something else" in splice.refusal()
    assert splice.feed(event(again) + DONE) == b""
    assert not splice.whole


def test_a_continuation_without_a_last_token_is_not_whole() -> None:
    """An engine that says [DONE] before it has said how it ended: the client must not take that for the end."""
    splice, _ = fed(ROLE, WORD)
    splice.turn()
    assert splice.feed(event({"index": 0, "text": " more", "token_ids": [8], "finish_reason": None})) != b""
    assert splice.feed(DONE) == b""
    assert not splice.whole


def test_nothing_follows_the_last_token_but_usage() -> None:
    """What an engine says beyond its own end reaches nobody."""
    splice, _ = fed(ROLE, WORD)
    splice.turn()
    last = event({"index": 0, "text": " end", "token_ids": [8], "finish_reason": "stop"})
    assert b" end" in splice.feed(last)
    assert splice.feed(last) == b""
    assert splice.feed(DONE) == DONE
