"""The two forms of vLLM's stream events, to recognise one token's event by bytes and to write one.

Both are one JSON object a line, without spaces, fields in a fixed order:

    data: {"id":...,"object":...,"created":...,"model":...,"choices":[{"index":0, TEXT, ... ,"token_ids":[7]}]}

Everything up to `"choices":[` is the same in all events of a stream: its *envelope*.
"""

import re

import msgspec
from msgspec import Raw
from msgspec.json import encode

CHOICES = b'"choices":['
DONE = b"data: [DONE]\n\n"
END = b"}]}\n\n"
IDS = b'"token_ids":['
NO_IDS = b"null"
LAST_FIELD_END = b"]" + END

_ids = re.compile(rb'"((?:prompt_)?token_ids)":\[[\d,\s]*\]').sub


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
    """The event as it would be had nobody asked for ids. (Inside of text the quotes are escaped.)"""
    if event.endswith(LAST_FIELD_END) and b'"prompt' not in event:
        at = event.rfind(IDS) + len(IDS)
        if at > len(IDS) and event.find(b"]", at) == len(event) - len(LAST_FIELD_END):
            return event[: at - 1] + NO_IDS + END
    return _ids(rb'"\1":null', event) if b'_ids":[' in event else event


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
