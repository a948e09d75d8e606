"""Usage out of an answer that is not streamed, without decoding the answer."""

import re

import msgspec
from msgspec.json import Decoder

from isochrone.access.usage import UsageFields, decode_usage, usage_from
from isochrone.nouns.request import Usage

SEARCH_BYTES = 64 * 1024
"""How far from either end of an answer its `usage` is looked for. Engines put it after the choices."""
USAGE_BYTES_MAX = 4096
"""Longest `usage` object that is read."""

SMALL_BYTES_MAX = 4096
"""Answers up to this are decoded as far as needed: 0.4 us for a short one, where the searches take 1.6."""


class Choice(msgspec.Struct, gc=False):
    """One choice of a Chat or Completions answer."""

    finish_reason: str | None = None


class Answer(msgspec.Struct, gc=False):
    """What is read of a small answer of Chat or Completions."""

    usage: UsageFields | None = None
    choices: list[Choice] | None = None


_decode_small = Decoder(Answer).decode
_start = re.compile(rb'"usage"\s*:\s*(?=\{)').match
_reason = re.compile(rb'"(?:finish_reason|stop_reason|reason)"\s*:\s*"(\w{1,40})"').search


def usage_of(body: bytes) -> Usage | None:
    """What an engine's JSON answer says of its tokens; None where it says nothing."""
    if len(body) <= SMALL_BYTES_MAX:
        try:
            answer = _decode_small(body)
        except (msgspec.DecodeError, RecursionError):
            return _usage_searched(body)
        if answer.usage is not None and answer.choices:
            return usage_from(answer.usage, answer.choices[0].finish_reason)
    return _usage_searched(body)


def _usage_searched(body: bytes) -> Usage | None:
    """Any dialect, any size: the last `usage` that is an object, found as text."""
    at = body.rfind(b'"usage"', -SEARCH_BYTES if len(body) > SEARCH_BYTES else 0)
    if at < 0:
        at = body.rfind(b'"usage"', 0, SEARCH_BYTES)
    found = _start(body, at) if at >= 0 else None
    if found is None:
        return None
    try:
        fields = decode_usage(_object(body, found.end()))
    except (msgspec.DecodeError, RecursionError):
        return None
    return usage_from(fields, _finish_reason(body))


def _object(body: bytes, start: int) -> bytes:
    """The object that begins at `start`. It holds numbers and nested objects, no text, so braces can be counted."""
    end = body.find(b"}", start, start + USAGE_BYTES_MAX) + 1
    while end and body.count(b"{", start, end) > body.count(b"}", start, end):
        end = body.find(b"}", end, start + USAGE_BYTES_MAX) + 1
    return body[start:end] if end else b""


def _finish_reason(body: bytes) -> str | None:
    """Of one choice, by the fields' names in Chat, Completions, Messages and incomplete Responses."""
    for key in (b'"finish_reason"', b'"stop_reason"', b'"incomplete_details"'):
        at = body.rfind(key, -SEARCH_BYTES if len(body) > SEARCH_BYTES else 0)
        if at >= 0:
            found = _reason(body, at, at + 200)
            if found:
                return found[1].decode()
    return None
