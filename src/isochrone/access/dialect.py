"""The two forms of vLLM's stream events: to recognise one token's event by bytes, to read any, and to write one.

Both are one JSON object a line, without spaces, fields in a fixed order:

    data: {"id":...,"object":...,"created":...,"model":...,"choices":[{"index":0, TEXT, ... ,"token_ids":[7]}]}

Everything up to `"choices":[` is the same in all events of a stream: its *envelope*.
"""

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.json import Decoder, encode

from isochrone.access.chunks import given
from isochrone.access.sse import fields_of
from isochrone.access.usage import UsageFields

CHOICES = b'"choices":['
DONE = b"data: [DONE]\n\n"
END = b"}]}\n\n"
IDS = b'"token_ids":['
NO_IDS = b"null"
LAST_FIELD_END = b"]" + END

_ids = re.compile(rb'"token_ids":\[[\d,\s]*\]').sub


class Dialect(msgspec.Struct, frozen=True, gc=False):
    """How one token stands in an event."""

    before: bytes
    """From the envelope to the text."""
    after: bytes
    """From the text to the ids, of an event that is not the last."""
    last: bytes
    """The same of the last event, with places for finish_reason and stop_reason."""


CHAT = Dialect(
    b'{"index":0,"delta":{"content":"',
    b'"},"logprobs":null,"finish_reason":null,"token_ids":',
    b'"},"logprobs":null,"finish_reason":%b,"stop_reason":%b,"token_ids":',
)
COMPLETIONS = Dialect(
    b'{"index":0,"text":"',
    b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":',
    b'","logprobs":null,"finish_reason":%b,"stop_reason":%b,"prompt_token_ids":null,"token_ids":',
)


def envelope_of(event: bytes) -> bytes:
    """The envelope of a stream, from any of its events; empty where it has another form than vLLM's."""
    at = event.find(CHOICES)
    return event[: at + len(CHOICES)] if event.startswith(b"data: {") and at > 0 else b""


def without_ids(event: bytes) -> bytes:
    """The event as it would be had nobody asked for output ids. (Inside of text the quotes are escaped.)"""
    if event.endswith(LAST_FIELD_END):
        at = event.rfind(IDS) + len(IDS)
        if at > len(IDS) and event.find(b"]", at) == len(event) - len(LAST_FIELD_END):
            return event[: at - 1] + NO_IDS + END
    return _ids(IDS[:-1] + NO_IDS, event) if IDS in event else event


def token_event(
    envelope: bytes, dialect: Dialect, text: str, finish: str | None = None, stop: Raw | None = None
) -> bytes:
    """One event, without its ids."""
    if finish is None:
        after = dialect.after
    else:
        after = dialect.last % (encode(finish), b"null" if stop is None else bytes(stop))
    return b"".join((envelope, dialect.before, inside(text), after, NO_IDS, END))


def usage_event(envelope: bytes, usage: dict[str, object]) -> bytes:
    """The event before the last one, where the client asked for usage."""
    return b'%b],"usage":%b}\n\n' % (envelope, encode(usage))


def inside(text: str) -> bytes:
    """A text as it stands between the quotes of JSON."""
    return encode(text)[1:-1]


# Reading.

BROKEN_REASONS = ("abort", "error")
"""Finish reasons that mean: the engine gave up."""


class Choice(msgspec.Struct, gc=False):
    """One choice of an event, in either dialect."""

    text: str | None = None
    delta: dict[str, Any] | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: Raw | UnsetType = UNSET

    @property
    def ids(self) -> bytes:
        return b",".join(b"%d" % one for one in self.token_ids or ())

    @property
    def said(self) -> str:
        if self.delta is None:
            return self.text or ""
        content = self.delta.get("content")
        return content if isinstance(content, str) else ""


class Event(msgspec.Struct, gc=False):
    """The data of an event, as far as it matters here."""

    choices: list[Choice] | UnsetType | None = UNSET
    usage: UsageFields | None = None
    error: Raw | UnsetType = UNSET
    object: str | None = None


class Tokenized(msgspec.Struct, gc=False):
    """The answer of `/tokenize`."""

    tokens: list[int]


decode_event = Decoder(Event).decode
decode_tokenized = Decoder(Tokenized).decode


def seen_in(event: bytes) -> Event:
    """What an event says; nothing where it holds no JSON object."""
    data = fields_of(event)[1]
    return decode_event(data) if data.startswith(b"{") else Event()


def is_broken(seen: Event) -> bool:
    """The engine gave up: an error event, or a finish reason that says so."""
    return (
        given(seen.error)
        or seen.object == "error"
        or any(choice.finish_reason in BROKEN_REASONS for choice in seen.choices or ())
    )


def as_shown(usage: UsageFields) -> dict[str, object]:
    """As vLLM writes it."""
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    shown: dict[str, object] = {
        "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
    }  # fmt: skip
    if usage.prompt_tokens_details is not None:
        shown["prompt_tokens_details"] = {"cached_tokens": usage.prompt_tokens_details.cached_tokens}
    return shown
