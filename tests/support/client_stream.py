"""One streamed answer in the simulation: its bytes from whichever engines, through the splice, to the client."""

import json
from functools import lru_cache
from typing import Any

from isochrone.access.contract import contract_of
from isochrone.access.inject import with_token_ids, with_usage
from isochrone.access.paths import Kind, Route
from isochrone.access.scan import scan
from isochrone.access.splice import Splice
from tests.support import byte_engine

CHAT = Route("/v1/chat/completions", Kind.CHAT)


@lru_cache(4096)
def answer(body: bytes, chat: bool) -> tuple[bytes, ...]:
    """An engine's events. Engines are alike, so that one answer is worked out once."""
    return tuple(byte_engine.stream(json.loads(body), chat))


class ClientStream:
    """What a client asked for, what it has got so far, and what it would have got without any fault."""

    def __init__(self, prompt: str, max_tokens: int) -> None:
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
        self._body = json.dumps({**asked, "max_tokens": max_tokens, "temperature": 0, "stream": True}).encode()
        scanned = scan(CHAT, self._body)
        usage = with_usage(CHAT, scanned, self._body)
        assert usage is not None
        self._sent = with_token_ids(usage)
        self._contract = contract_of(CHAT, scanned)
        self.splice = Splice(self._contract, True)
        self.got = b""
        self._events: tuple[bytes, ...] = ()
        self._fed = 0
        self._role_events = 1
        self.before = 0
        """Tokens of attempts before this one."""

    @property
    def delivered(self) -> bool:
        return bool(self.got)

    def begin(self, continues: bool) -> None:
        """An engine takes the request."""
        assert continues == self.delivered
        if continues:
            self.splice.turn()
            self._events = answer(self.splice.body(self.splice.room(byte_engine.CONTEXT_TOKENS)), False)
        else:
            self.splice = Splice(self._contract, True)
            self._events = answer(self._sent, True)
        self._fed = 0
        self._role_events = 0 if continues else 1
        self.before = self.splice.output_tokens

    def advance(self, tokens: int) -> None:
        """So many tokens of this attempt are out. (A chat's first event carries the role, and each other one token.)"""
        self._feed_up_to(tokens + self._role_events)

    def break_off(self, share: float) -> None:
        """The connection ends somewhere in what would have come next."""
        rest = b"".join(self._events[self._fed : self._fed + 3])
        self._feed(rest[: int(share * len(rest))])
        self._events = ()

    def finish(self) -> None:
        """The rest of the answer."""
        self._feed_up_to(len(self._events))

    def _feed_up_to(self, end: int) -> None:
        for event in self._events[self._fed : end]:
            self._feed(event)
        self._fed = max(self._fed, end)

    def _feed(self, data: bytes) -> None:
        self.got += self.splice.feed(data)

    def check(self, whole: bool) -> None:
        """Tokens have reached the client once, in order, none missing; what is cut short does not look whole."""
        undisturbed = byte_engine.read(b"".join(answer(self._body, True)))
        if whole:
            said = byte_engine.read(self.got)
            assert {**said, "envelopes": 0} == {**undisturbed, "envelopes": 0}
            assert len(said["envelopes"]) == 1
        else:
            assert b"[DONE]" not in self.got
            said = byte_engine.read(self.got + b"data: [DONE]\n\n")
            assert undisturbed["text"].startswith(said["text"])
