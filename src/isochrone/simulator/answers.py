"""The bytes of a simulated answer: an engine's events, the splice that a relay feeds them to, what the client gets.

Only the seeds of the fault swarm (`swarm.py`) have answers in bytes; larger runs count tokens. The splice is the very
`access/splice.py` of the gateway, made from a contract read from a body as the gateway reads it. The engine is small: a
token's text is its number, so that a client sees at once which one is missing, comes twice, or out of order.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from isochrone.access.contract import contract_of
from isochrone.access.inject import with_token_ids, with_usage
from isochrone.access.paths import Kind, Route
from isochrone.access.scan import scan
from isochrone.access.splice import Splice
from isochrone.nouns.request import Usage

ROUTE = Route("/v1/chat/completions", Kind.CHAT)
PROMPT_IDS = (5, 6, 7)
"""What every prompt is made of here; its real length is the twin's business."""
FIRST_ID = 1000
"""Ids of output tokens count from here."""
HALVES_EVERY = 5
"""One token in so many ends in half a character, which engines hold back until the next token completes it."""
ODD = ("", "é", "", '"', "漢", "\\", "\n", "😀")
"""What follows a token's number."""
BROKEN_EVENTS = 3
"""A connection that ends may have carried a part of so many events more than were counted."""


class Wish(msgspec.Struct, frozen=True, gc=False):
    """What a client asks of a streamed answer."""

    tokens: int
    """How long the answer turns out."""
    max_tokens: int | None = None
    exact: bool = True
    """Greedy: another instance says the same."""
    event_tokens: int = 1
    """Tokens in one event of the engine's."""
    wants_usage: bool = False
    resumable: bool = True
    """False: it asks for something that refuses a continuation."""


class StreamedAnswer:
    """One answer, from whichever instances."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        body = _body(wish)
        scanned = scan(ROUTE, body)
        self._cuts_usage = (sent := with_usage(ROUTE, scanned, body)) is not None
        self.asked = with_token_ids(sent or body)
        self._contract = contract_of(ROUTE, scanned)
        self.splice = Splice(self._contract, self._cuts_usage)
        self.got = bytearray()
        """What the client has."""
        self.before = 0
        """Tokens that the attempt in flight did not have to generate."""
        self._events: Iterator[tuple[int, bytes]] = iter(())
        self._ahead: tuple[int, bytes] | None = None

    @property
    def delivered(self) -> bool:
        """The client has the beginning of it."""
        return bool(self.got)

    def begin(self, continues: bool) -> str:
        """An attempt is sent. Returns what is wrong with that, empty where nothing is."""
        if continues != self.delivered:
            return "begun anew after its first byte" if self.delivered else "continued before its first byte"
        if continues:
            if refusal := self.splice.refusal():
                return f"continued, and cannot be: {refusal}"
            self.splice.turn()
            asked = msgspec.json.decode(self.splice.body(self.splice.room(len(PROMPT_IDS) + self.wish.tokens)))
            said = asked["prompt"][len(PROMPT_IDS) :]
            if asked["prompt"] != [*PROMPT_IDS, *range(FIRST_ID, FIRST_ID + len(said))]:
                return f"the continuation's prompt is not the answer so far: {asked['prompt']}"
            self.before = len(said)
        else:
            self.splice = Splice(self._contract, self._cuts_usage)
            self.before = 0
        self._events = _events(self.wish, self.before, chat=not continues)
        self._ahead = next(self._events, None)
        return ""

    def advance(self, tokens: int) -> None:
        """So many tokens of this attempt are out."""
        while self._ahead is not None and self._ahead[0] <= self.before + tokens and not self.splice.whole:
            self._feed(self._ahead[1])
            self._ahead = next(self._events, None)

    def finish(self) -> None:
        """All of the rest."""
        self.advance(self.wish.tokens + 1)

    def break_off(self, share: float) -> None:
        """The connection ends somewhere in what would have come next."""
        rest = b"".join(event for _, event in ([self._ahead] if self._ahead else []))
        rest += b"".join(
            event for _, event in (one for one, _ in zip(self._events, range(BROKEN_EVENTS), strict=False))
        )
        self._feed(rest[: int(share * len(rest))])
        self._ahead = None

    def completed(self) -> bool:
        """All tokens are out and only the stream's last words are lost: the relay says them itself."""
        ending = self.splice.ending() if self.delivered and not self.splice.whole else None
        if ending is not None:
            self.got += ending
        return self.splice.whole

    @property
    def usage(self) -> Usage | None:
        """As the relay reports it."""
        return self.splice.usage

    def fault(self, whole: bool) -> str:
        """What is wrong with what the client has; empty where nothing is.

        `whole`: the request counts as done. Then every token is there once and in order, with one head, one end and the
        right counts; else what is there is a beginning, and does not look like all of it.
        """
        events, done = _read(bytes(self.got))
        expected, said = "".join(text for text, _ in _texts(self.wish.tokens)), "".join(map(_text, events))
        if not whole:
            if done:
                return "it looks whole and is not"
            return "" if expected.startswith(said) else _difference(expected, said)
        if said != expected:
            return _difference(expected, said)
        if done != 1 or not self.got.endswith(b"data: [DONE]\n\n"):
            return f"[DONE] came {done} times, or not last"
        heads = {(event["id"], event["object"], event["created"], event["model"]) for event in events}
        roles = [one for event in events for choice in event["choices"] if (one := choice["delta"].get("role"))]
        finishes = [one for event in events for choice in event["choices"] if (one := choice["finish_reason"])]
        usages = [event["usage"]["completion_tokens"] for event in events if event.get("usage")]
        if (len(heads), len(roles), len(finishes)) != (1, 1, 1):
            return f"heads, roles, ends: {heads}, {roles}, {finishes}"
        if usages != ([self.wish.tokens] if self.wish.wants_usage else []):
            return f"usage of {self.wish.tokens} tokens was told as {usages}"
        return "ids that the client did not ask for" if b'_ids":[' in self.got else ""

    def _feed(self, data: bytes) -> None:
        if data:
            self.got += self.splice.feed(data)


def _body(wish: Wish) -> bytes:
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    body["temperature"] = 0 if wish.exact else 1
    if wish.max_tokens is not None:
        body["max_tokens"] = wish.max_tokens
    if wish.wants_usage:
        body["stream_options"] = {"include_usage": True}
    if not wish.resumable:
        body["logprobs"] = True
    return msgspec.json.encode(body)


def _texts(tokens: int) -> Iterator[tuple[str, int]]:
    """For each token: the text that comes with it, and its number."""
    held = ""
    for number in range(tokens):
        text = held + f" {number}" + ODD[number % len(ODD)]
        held = ""
        if _is_half(number) and number + 1 < tokens:
            held, text = text, ""
        yield text, number


def _is_half(number: int) -> bool:
    return number % HALVES_EVERY == HALVES_EVERY - 2


def _events(wish: Wish, start: int, chat: bool) -> Iterator[tuple[int, bytes]]:
    """What an engine that has `start` tokens in its prompt says: for each event the tokens that are out with it.

    The first attempt is a chat, later ones are completions: another envelope, no role, other fields.
    """
    head = b'data: {"id":"%b","object":"%b","created":%d,"model":"m","choices":[' % (
        (b"chat-1", b"chat.completion.chunk", 7) if chat else (b"cmpl-%d" % start, b"text_completion", 8)
    )
    prompt = b",".join(b"%d" % one for one in (*PROMPT_IDS, *range(FIRST_ID, FIRST_ID + start)))
    if chat:
        role = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        yield start + 1, b'%b%b],"prompt_token_ids":[%b]}\n\n' % (head, role, prompt)
    texts, ids = [], []
    for text, number in _texts(wish.tokens):
        if number < start:
            continue
        texts.append(text)
        ids.append(b"%d" % (FIRST_ID + number))
        last = number + 1 == wish.tokens
        if len(ids) < wish.event_tokens and not last:
            continue
        said = msgspec.json.encode("".join(texts))
        yield (
            number + 1,
            head + (_chat if chat else _completion)(said, b",".join(ids), _finish(wish) if last else b"null"),
        )
        texts, ids = [], []
    prompt_tokens = len(PROMPT_IDS) + start
    usage = (prompt_tokens, prompt_tokens + wish.tokens - start, wish.tokens - start)
    yield (
        wish.tokens,
        b'%b],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n' % (head, *usage),
    )
    yield wish.tokens, b"data: [DONE]\n\n"


def _chat(said: bytes, ids: bytes, finish: bytes) -> bytes:
    last = b',"stop_reason":null' if finish != b"null" else b""
    form = b'{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":%b%b,"token_ids":[%b]}]}\n\n'
    return form % (said, finish, last, ids)


def _completion(said: bytes, ids: bytes, finish: bytes) -> bytes:
    form = (
        b'{"index":0,"text":%b,"logprobs":null,"finish_reason":%b,"stop_reason":null,"prompt_token_ids":null,'
        b'"token_ids":[%b]}]}\n\n'
    )
    return form % (said, finish, ids)


def _finish(wish: Wish) -> bytes:
    return b'"length"' if wish.max_tokens == wish.tokens else b'"stop"'


def _read(got: bytes) -> tuple[list[dict[str, Any]], int]:
    """Events of the client's stream, and how many [DONE] there were."""
    lines = [line[6:] for line in got.split(b"\n\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(line) for line in lines if line != b"[DONE]"], lines.count(b"[DONE]")


def _text(event: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _difference(expected: str, said: str) -> str:
    at = next((place for place, (one, other) in enumerate(zip(expected, said, strict=False)) if one != other), None)
    at = min(len(expected), len(said)) if at is None else at
    return f"expected ...{expected[max(0, at - 20) : at + 20]!r}, the client has ...{said[max(0, at - 20) : at + 20]!r}"
