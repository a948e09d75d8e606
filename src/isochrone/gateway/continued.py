"""Answers of the instance that a stream goes on at: the prompt's ids, the rest of the text, or something else.

The client has its head and a part of its answer; what comes here joins on.
"""

from typing import TYPE_CHECKING

from isochrone.gateway.answers import Answer, EventAnswer, HeldAnswer
from isochrone.gateway.resuming import TOKENIZE

if TYPE_CHECKING:
    from isochrone.gateway.exchange import Exchange

TOKENIZE_BYTES_MAX = 32 * 1024 * 1024
"""Longest answer of `/tokenize`: some four million tokens."""


class ContinuedAnswer(EventAnswer):
    """The rest of a stream."""

    __slots__ = ()

    def __init__(self, exchange: "Exchange", status: int) -> None:
        assert exchange.delivering is not None
        self._joins(exchange, status, exchange.delivering.chunked)
        assert exchange.resuming is not None
        assert exchange.resuming.splice is not None
        self._begin(exchange.resuming.splice)


class PromptAnswer(Answer):
    """What `/tokenize` says: then the rest can be asked for."""

    __slots__ = ("_body",)

    def __init__(self, exchange: "Exchange", status: int) -> None:
        self._joins(exchange, status, False)
        self._body = bytearray()

    def take(self, body: bytes, last: bool) -> None:
        self._body += body
        if len(self._body) > TOKENIZE_BYTES_MAX:
            self.exchange.drop_upstream()
            self.exchange.not_continued(self.status, "the answer of /tokenize is too long")
        elif last:
            resuming = self.exchange.resuming
            assert resuming is not None
            assert resuming.splice is not None
            if resuming.splice.take_prompt(bytes(self._body)):
                self.exchange.ask_for_rest()
            else:
                self.exchange.not_continued(self.status, "the answer of /tokenize cannot be read")


class Unwelcome(Answer):
    """An answer that continues nothing."""

    __slots__ = ()

    def __init__(self, exchange: "Exchange", status: int) -> None:
        self._joins(exchange, status, False)

    def take(self, body: bytes, last: bool) -> None:
        self.exchange.drop_upstream()
        self.exchange.not_continued(self.status, f"status {self.status} to a continuation")


def choose(exchange: "Exchange", status: int, lines: bytes, read: dict[bytes, bytes]) -> Answer:
    """The way for the head of an attempt that continues."""
    if status == 429 or status >= 500:
        return HeldAnswer(exchange, status, lines, read.get(b"content-length"), read.get(b"retry-after"))
    if status != 200 or b"content-encoding" in read:
        return Unwelcome(exchange, status)
    if exchange.target == TOKENIZE:
        return PromptAnswer(exchange, status)
    events = read.get(b"content-type", b"").startswith(b"text/event-stream")
    return ContinuedAnswer(exchange, status) if events else Unwelcome(exchange, status)
