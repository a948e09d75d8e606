"""A stream that changes its instance anywhere says the same as one that does not."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.access.contract import Contract, contract_of
from isochrone.access.inject import with_token_ids, with_usage
from isochrone.access.paths import Kind, Route
from isochrone.access.scan import scan
from isochrone.access.splice import Splice
from tests.support import byte_engine
from tests.support.byte_engine import CONTEXT_TOKENS, read

CHAT = Route("/v1/chat/completions", Kind.CHAT)
COMPLETIONS = Route("/v1/completions", Kind.COMPLETIONS)
STOPS: list[Any] = [None, "ab", ["é漢", '"a'], ["\n\n", "}"], ["a b 😀"], "b"]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[Route, dict[str, Any]]:
    """A greedy streamed request."""
    route = draw(st.sampled_from([CHAT, COMPLETIONS]))
    text = draw(st.text("xyz é", min_size=1, max_size=6))
    body: dict[str, Any] = {"model": "m", "stream": True, "temperature": 0}
    if draw(st.integers(0, 4)):
        body["max_tokens"] = draw(st.integers(1, 40))
    body |= {"messages": [{"role": "user", "content": text}]} if route is CHAT else {"prompt": text}
    if (stop := draw(st.sampled_from(STOPS))) is not None:
        body["stop"] = stop
    if draw(st.booleans()):
        body["stream_options"] = {"include_usage": True}
    return route, body


def prepared(route: Route, body: dict[str, Any]) -> tuple[Contract, dict[str, Any], Splice]:
    """The contract, what the instance is sent, and the splice."""
    raw = json.dumps(body).encode()
    scanned = scan(route, raw)
    contract = contract_of(route, scanned)
    usage = with_usage(route, scanned, raw)
    sent: dict[str, Any] = json.loads(with_token_ids(usage or raw))
    return contract, sent, Splice(contract, usage is not None)


def fed(splice: Splice, data: bytes, cuts: list[int]) -> bytes:
    """`data` in pieces, cut at these places."""
    places = sorted({min(cut, len(data)) for cut in cuts})
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    return b"".join(map(splice.feed, pieces))


sizes = st.lists(st.integers(1, 4), max_size=12) | st.just([])
cuts = st.lists(st.integers(0, 4000), max_size=6)


@given(bodies(), sizes, cuts)
def test_undisturbed_it_is_what_the_client_would_have_seen(
    asked: tuple[Route, dict[str, Any]], sizes: list[int], cuts: list[int]
) -> None:
    route, body = asked
    _, sent, splice = prepared(route, body)
    answer = b"".join(byte_engine.stream(sent, route is CHAT, sizes))
    assert fed(splice, answer, cuts) == b"".join(byte_engine.stream(body, route is CHAT, sizes))
    assert splice.whole
    assert splice.usage is not None
    assert splice.usage.completion_tokens == splice.output_tokens


@settings(max_examples=300)
@given(bodies(), st.data())
def test_cut_anywhere_it_says_the_same(asked: tuple[Route, dict[str, Any]], data: st.DataObject) -> None:
    """Up to three instances, each cut at any byte, events of any number of tokens."""
    route, body = asked
    contract, sent, splice = prepared(route, body)
    expected = read(b"".join(byte_engine.stream(body, route is CHAT)))
    out = b""
    for turn in range(data.draw(st.integers(1, 3)) + 1):
        answer = b"".join(byte_engine.stream(sent, route is CHAT if turn == 0 else False, data.draw(sizes), f"i{turn}"))
        at = data.draw(st.integers(0, len(answer)), label="cut at")
        out += fed(splice, answer[:at], data.draw(cuts))
        if splice.whole:
            break
        ending = splice.ending()
        if ending is not None:
            out += ending
            break
        if splice.refusal():
            assert splice.refusal() == "no event has come yet"
            assert b"data" not in out
            return
        splice.turn()
        sent = json.loads(splice.body(splice.room(CONTEXT_TOKENS)))
    else:
        out += fed(splice, b"".join(byte_engine.stream(sent, False, data.draw(sizes), "last")), data.draw(cuts))
    assert splice.whole
    said = read(out)
    assert said == {**expected, "envelopes": {("i0", *next(iter(expected["envelopes"]))[1:])}}
    assert splice.usage is not None
    reference = read(b"".join(byte_engine.stream({**body, "stream_options": {"include_usage": True}}, route is CHAT)))
    (usage,) = reference["usage"]
    assert (splice.usage.prompt_tokens, splice.usage.completion_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert contract.why == ""


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS], ids=["chat", "completions"])
def test_every_event_one_token_each_is_a_place_to_go_on_from(route: Route) -> None:
    """No token is generated twice where nothing is held back, and every event of a plain text is a resume point."""
    body = {"model": "m", "stream": True, "temperature": 0, "max_tokens": 30}
    body |= {"messages": [{"role": "user", "content": "x"}]} if route is CHAT else {"prompt": "x"}
    _, sent, _ = prepared(route, body)
    answer = byte_engine.stream(sent, route is CHAT)
    whole = b"".join(byte_engine.stream(body, route is CHAT))
    for number in range(1, len(answer) - 2):
        _, _, splice = prepared(route, body)
        out = b"".join(map(splice.feed, answer[:number]))
        if splice.ending() is not None:
            break
        splice.turn()
        again = json.loads(splice.body(splice.room(CONTEXT_TOKENS)))
        rest = byte_engine.stream(again, False, id="2")
        out += b"".join(map(splice.feed, rest))
        if json.loads(answer[number - 1][6:])["choices"][0].get("delta", {}).get("content") or route is COMPLETIONS:
            held = len(again["prompt"]) - len(byte_engine.prompt_ids(body))
            assert again["max_tokens"] == 30 - held
        assert read(out)["text"] == read(whole)["text"]


ROLE = byte_engine.stream({"messages": [], "max_tokens": 1, "return_token_ids": True}, True)[0]
PIECES = [
    ROLE,
    ROLE[:-2].replace(b'"role":"assistant",', b"").replace(b'"content":""', b'"content":"a"\n'),
    b"\n", b"\n\n", b"\r\n\r\n", b"\xff", b"data: ", b"data: [DONE]\n\n", b": comment\n\n",
    b'data: {"choices":[', b"]}\n\n", b"]}]}\n\n", b"1,2", b"null", b'"token_ids":[', b'"prompt_token_ids":["x"]',
    b'{"index":0,"delta":{"content":"', b'"},"logprobs":null,', b'"finish_reason":null,"token_ids":[',
    b'"finish_reason":"stop"', b'{"error":1}', b'"text":"\\ud800"', b'"usage":{}',
    b'data: {"choices":[{"delta":{"content":"a\nb"},"token_ids":[1]}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":"x"}}\n\n',
    b'data: {"choices":null,"usage":{"completion_tokens":[]}}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"prompt_tokens_details":7}}\n\n',
    b'data: {"choices":[{"delta":{"content":7},"token_ids":[3]}]}\n\n',
    b'data: {"choices":[{"text":"x","token_ids":[-3],"finish_reason":"odd","stop_reason":{"a":1}}]}\n\n',
]  # fmt: skip
"""What looks like a part of a stream."""


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=8)), st.lists(st.sampled_from(PIECES)), st.booleans())
def test_no_bytes_break_it(first: list[bytes], second: list[bytes], begins_well: bool) -> None:
    """Case S-12: whatever an engine says, before and after the stream has changed its instance."""
    _, _, splice = prepared(CHAT, {"model": "m", "stream": True, "temperature": 0, "messages": []})
    before = [ROLE, *first] if begins_well else first
    for piece in before:
        splice.feed(piece)
    splice.ending()
    if not splice.refusal():
        splice.turn()
        if not splice.needs_body and splice.room(CONTEXT_TOKENS) > 0:
            splice.body(splice.room(CONTEXT_TOKENS))
        for piece in second:
            splice.feed(piece)
        splice.ending()
        splice.refusal()
    splice.rest()
    assert splice.output_tokens >= 0
    assert splice.usage is None or splice.usage.prompt_tokens is None or splice.usage.prompt_tokens >= 0
