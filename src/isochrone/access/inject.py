"""The closed list of fields that are spliced into a request's body, as text: everything else keeps its exact bytes.

- `stream_options.include_usage`, so that an engine says at the end of a stream how many tokens it was;
- `return_token_ids`, so that a stream can be continued on another instance (`access/contract.py`).

What the engine adds because of them is cut out of the answer again (`access/sse.py`, `access/splice.py`), so the
client sees what it would have seen.
"""

import msgspec
from msgspec.json import Decoder

from isochrone.access.members import TooComplex, members
from isochrone.access.paths import Kind, Route
from isochrone.access.scan import Scan

SPLICED_KINDS = frozenset({Kind.CHAT, Kind.COMPLETIONS})
"""Responses and Messages always report usage."""


class StreamOptions(msgspec.Struct, gc=False):
    """The client's own wishes."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


_decode = Decoder(StreamOptions | None).decode


def options_of(scan: Scan) -> StreamOptions:
    """The client's stream options. Raises msgspec.DecodeError for an odd form."""
    return (None if scan.stream_options is None else _decode(scan.stream_options)) or StreamOptions()


def with_token_ids(body: bytes) -> bytes:
    """The body of a request that does not name `return_token_ids`, with token ids asked for."""
    return _added(body, body.rindex(b"}"), b'"return_token_ids":true')


def with_usage(route: Route, scan: Scan, body: bytes) -> bytes | None:
    """The body with usage asked for, or None where there is nothing to change.

    None too where the client wants usage itself, and where the change would show elsewhere than in one event that can
    be cut out: with `continuous_usage_stats` the engine would put usage into every event.
    """
    if not scan.stream or route.kind not in SPLICED_KINDS:
        return None
    if scan.stream_options is None:
        return _added(body, body.rindex(b"}"), b'"stream_options":{"include_usage":true}')
    try:
        options = _decode(scan.stream_options)
        if options is not None and (options.include_usage or options.continuous_usage_stats):
            return None
        return _changed(body)
    except (msgspec.DecodeError, TooComplex):
        return None  # options of an odd form: the engine will say so


def _changed(body: bytes) -> bytes:
    """The body whose `stream_options` is null, or an object that lacks a true `include_usage`."""
    options = next(member for member in members(body) if member.key == "stream_options")
    if body[options.start] != ord("{"):
        return body[: options.start] + b'{"include_usage":true}' + body[options.end :]
    for member in members(body, options.start):
        if member.key == "include_usage":
            return body[: member.start] + b"true" + body[member.end :]
    return _added(body, options.end - 1, b'"include_usage":true')


def _added(body: bytes, brace: int, member: bytes) -> bytes:
    """The body with one more member in the object that ends at `brace`."""
    comma = b"" if body[:brace].rstrip().endswith(b"{") else b","
    return body[:brace] + comma + member + body[brace:]
