"""The top-level fields of a JSON body that scheduling needs: typed, partial, and refused early when they are wrong.

Everything else in the body is skipped, not understood; engines know best what to do with it. Four outcomes:
well-formed and typed (the usual one, in one pass); a field of an odd type, which then counts as absent (the engine
will say what it thinks of it); a repeated key that we read (refused: the engine might read another one than we did);
malformed (refused).
"""

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.json import Decoder

from isochrone.access import wire
from isochrone.access.members import TooComplex, members
from isochrone.nouns.errors import ApiError


class BadRequest(Exception):
    """The body is the client's mistake; `error` is what to answer."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class Fields(msgspec.Struct, gc=False):
    """What is read. UNSET: not in the body. null is kept apart only to find repeated keys; it means absent too."""

    model: str | UnsetType = UNSET
    messages: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    tools: Raw | UnsetType = UNSET
    system: Raw | UnsetType = UNSET
    instructions: Raw | UnsetType = UNSET
    stream: bool | UnsetType | None = UNSET
    stream_options: Raw | UnsetType = UNSET
    max_tokens: int | UnsetType | None = UNSET
    max_completion_tokens: int | UnsetType | None = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    n: int | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET
    prompt_cache_key: str | UnsetType | None = UNSET
    session_id: str | UnsetType | None = UNSET
    cache_salt: str | UnsetType | None = UNSET


KEYS = tuple(Fields.__struct_fields__)
LONG_KEYS = ("messages", "prompt", "input", "tools", "system", "instructions")
SHORT_BYTES = 1024
"""Below this a search for keys goes over the whole body."""
SHORT_VALUE_BYTES = 64
"""A value up to this stays where long ones are cut out."""
LONG_BYTES = 64 * 1024
"""Above this a search for keys ends with the first one too many."""
SURROGATES_MAX = 100_000
"""Lone surrogates in one body; a body with more counts as malformed."""
_key = re.compile(rb'"(' + "|".join(KEYS).encode() + rb')"\s*:')
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_lone_surrogates = re.compile(_HIGH + rb"(?!" + _LOW + rb")|(?<!" + _HIGH + rb")" + _LOW).sub
_decode = Decoder(Fields).decode
_Raws = msgspec.defstruct("_Raws", [(key, Raw | UnsetType, UNSET) for key in KEYS], gc=False)
_decode_raws: Callable[[bytes], msgspec.Struct] = Decoder(_Raws).decode
_DECODERS = {field.name: Decoder(field.type, strict=False) for field in msgspec.structs.fields(Fields)}


def read(body: bytes) -> tuple[Fields, bytes]:
    """The fields of a body, and the body with 0 for its long values. Raises BadRequest."""
    if not body.isascii():
        _require_utf8(body)
    try:
        fields = _decode(body)
    except msgspec.DecodeError:
        body = _without_lone_surrogates(body)
        fields = _read_leniently(body)
    except RecursionError:
        raise BadRequest(_malformed("it is nested too deeply")) from None
    return fields, _refuse_repeated(body, fields)


def _without_lone_surrogates(text: bytes) -> bytes:
    r"""JSON text with `\ufffd` for each lone escaped surrogate: JSON allows them, the decoder does not.

    Lengths and positions stay. Only ever read by us; the engine gets the text as it came. Escaped backslashes are out
    of the way meanwhile, so that each `\u` is an escape; the NULs that stand in for them cannot be in well-formed
    JSON.
    """
    if b"\\u" not in text or b"\0" in text:
        return text
    text = _lone_surrogates(rb"\\ufffd", text.replace(b"\\\\", b"\0\0"), SURROGATES_MAX)
    return text.replace(b"\0\0", b"\\\\")


def _read_leniently(body: bytes) -> Fields:
    """Field by field, after the quick way failed: says why, or takes fields of odd types as absent."""
    if not body.strip():
        raise BadRequest(wire.bad_request("empty_body", "The request body is empty; it must be a JSON object."))
    try:
        raws = _decode_raws(body)
    except msgspec.ValidationError as error:
        shown = f"The request body must be a JSON object: {error}."
        raise BadRequest(wire.bad_request("invalid_body", shown)) from None
    except msgspec.DecodeError as error:
        raise BadRequest(_malformed(_with_offset(str(error), body))) from None
    except RecursionError:
        raise BadRequest(_malformed("it is nested too deeply")) from None
    values = {key: getattr(raws, key) for key in KEYS}
    typed: dict[str, Any] = {key: _typed(key, raw) for key, raw in values.items() if raw is not UNSET}
    return Fields(**typed)


def _typed(key: str, raw: Raw) -> object:
    """The value, taken as loosely as engines take it ("5" is 5, 1 is true), or UNSET for one of an odd type.

    Only an odd model is refused; null is as good as none.
    """
    try:
        return _DECODERS[key].decode(raw)
    except (msgspec.DecodeError, RecursionError):
        if key == "model" and bytes(raw) != b"null":
            raise BadRequest(wire.bad_request("invalid_type", "'model' must be a string.", "model")) from None
        return UNSET


def _require_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(_malformed(f"invalid UTF-8 (byte {error.start})")) from None


def _malformed(why: str) -> ApiError:
    return wire.bad_request("invalid_json", f"The request body is not well-formed JSON: {why}.")


def _with_offset(why: str, body: bytes) -> str:
    """The decoder's reason, always with an offset; it leaves it out where the input ends too early."""
    why = why.removeprefix("JSON is malformed: ")
    return why if "(byte " in why else f"{why[:1].lower()}{why[1:]} (byte {len(body)})"


def _refuse_repeated(body: bytes, fields: Fields) -> bytes:
    """Raise BadRequest if a key that we read stands twice at the top level. Returns the body without its long values.

    Long values are cut out, then one pattern finds our keys in the short rest. Only where one shows up twice (the name
    is also a nested key), or some key may be written with escapes, is the body walked exactly.
    """
    rest = body if len(body) < SHORT_BYTES else _without_values(body, fields)
    if len(rest) < LONG_BYTES:
        found = _key.findall(rest)
    else:
        found = [match[1] for match in islice(_key.finditer(rest), len(KEYS) + 1)]
    if len(found) != len(set(found)) or b"\\u" in rest:
        _walk_for_repeated(body)
    return rest


def _without_values(body: bytes, fields: Fields) -> bytes:
    for key in LONG_KEYS:
        value = getattr(fields, key)
        if value is not UNSET and len(text := bytes(value)) > SHORT_VALUE_BYTES:
            body = _cut(body, b'"' + key.encode() + b'"', text)
    return body


def _cut(body: bytes, quoted: bytes, value: bytes) -> bytes:
    """`body` with 0 for the value that follows the key, if it does follow directly."""
    colon = body.find(quoted) + len(quoted)
    start = colon + (2 if body.startswith(b": ", colon) else 1)
    return body[:start] + b"0" + body[start + len(value) :] if body.startswith(value, start) else body


def _walk_for_repeated(body: bytes) -> None:
    seen = set()
    try:
        for member in members(body):
            if member.key in seen and member.key in KEYS:
                shown = f"The key {member.key!r} stands twice in the request body; send it once."
                raise BadRequest(wire.bad_request("duplicate_key", shown, member.key))
            seen.add(member.key)
    except TooComplex:
        shown = "The request body has too many keys and brackets to be checked for repeated keys."
        raise BadRequest(wire.bad_request("body_too_complex", shown)) from None
