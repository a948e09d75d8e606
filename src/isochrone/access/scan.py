"""Request bodies -> what scheduling needs to know of them. The bytes themselves pass on untouched.

Cost: about 4 us for a short chat body, 8 us for 4 KB and 40 us for 64 KB of English text, hashing included.
"""

import msgspec
from msgspec import UNSET

from isochrone.access import fields as fields_of
from isochrone.access import wire
from isochrone.access.fields import BadRequest, Fields
from isochrone.access.multipart import form_fields
from isochrone.access.paths import Route
from isochrone.access.prompt import Prompt, prompt_of
from isochrone.kv.hashing import FINE_BLOCK_BYTES, chain, ids_salt, text_salt
from isochrone.nouns.errors import ApiError
from isochrone.nouns.request import PromptSize

__all__ = ["BadRequest", "Scan", "scan"]

TOKENS_MAX = 2**31 - 1
"""A larger `max_tokens` counts as this."""
CHOICES_MAX = 1024
"""More answers to one request than this count as this many."""
SESSION_CHARS_MAX = 256
"""Longest session key; what is longer is cut."""


class Scan(msgspec.Struct, gc=False, kw_only=True):
    """What a body says, as far as a `Request` needs it."""

    model: str
    """Empty where the route allows it to be absent."""
    stream: bool = False
    max_tokens: int | None = None
    """Bound on output tokens, at least 1; None: none given (or null)."""
    choices: int = 1
    """`n` times the number of prompts."""
    size: PromptSize = PromptSize()
    blocks: tuple[int, ...] = ()
    hashed_bytes: int = 0
    session: str = ""
    """Hint: the client's own key of the conversation (`session_id`, `prompt_cache_key` or `user`)."""
    stream_options: bytes | None = None
    """Exact text of that field, for `access/inject.py`; None: absent."""
    rest: bytes = b""
    """The body with 0 for long values of messages, prompt, tools and the like, for `access/contract.py`."""


def scan(route: Route, body: bytes, content_type: bytes = b"") -> Scan:
    """Read a body. Raises BadRequest for one that no engine should see."""
    if content_type[:10].lower() == b"multipart/":
        return _scan_form(route, body, content_type)
    try:
        fields, rest = fields_of.read(body)
    except BadRequest:
        looks_like_json = body.lstrip()[:1] == b"{"  # `curl -d` calls it a form
        if content_type and b"json" not in content_type.lower() and not looks_like_json:
            media = f"A body of content type {wire.quoted(content_type)}"
            raise BadRequest(wire.unsupported_media(media, "application/json")) from None
        raise
    model = "" if fields.model is UNSET else fields.model
    if not model and route.model_required:
        raise BadRequest(_no_model())
    prompt = prompt_of(fields, body)
    return Scan(
        model=model,
        stream=fields.stream is True and route.generates,
        max_tokens=_max_tokens(fields),
        choices=_choices(fields, prompt),
        size=prompt.size,
        blocks=_blocks(fields, model, prompt) if route.generates else (),
        hashed_bytes=len(prompt.data),
        session=_session(fields),
        stream_options=None if fields.stream_options is UNSET else bytes(fields.stream_options),
        rest=rest,
    )


def _scan_form(route: Route, body: bytes, content_type: bytes) -> Scan:
    form = form_fields(body, content_type, (b"model", b"stream"))
    if form is None:
        message = "The multipart body does not begin with the boundary that its content type names."
        raise BadRequest(wire.bad_request("invalid_multipart", message))
    model = form.get(b"model", b"").decode(errors="replace")
    if not model and route.model_required:
        raise BadRequest(_no_model())
    return Scan(model=model, size=PromptSize(images=1))


def _no_model() -> ApiError:
    return wire.bad_request("missing_model", "The field 'model' is missing; name the model to use.", "model")


def _max_tokens(fields: Fields) -> int | None:
    """`max_completion_tokens` goes before the older `max_tokens`, as in vLLM."""
    for given in (fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens):
        if given is not UNSET and given is not None:
            return min(max(given, 1), TOKENS_MAX)
    return None


def _choices(fields: Fields, prompt: Prompt) -> int:
    each = 1 if fields.n is UNSET or fields.n is None else max(fields.n, 1)
    return min(each * prompt.sequences, CHOICES_MAX)


def _session(fields: Fields) -> str:
    for key in (fields.session_id, fields.prompt_cache_key, fields.user):
        if key is not UNSET and key:
            return key[:SESSION_CHARS_MAX]
    return ""


def _blocks(fields: Fields, model: str, prompt: Prompt) -> tuple[int, ...]:
    if len(prompt.data) < FINE_BLOCK_BYTES:
        return ()
    cache_salt = fields.cache_salt or ""
    salt = ids_salt(model, cache_salt) if prompt.is_ids else text_salt(model, cache_salt)
    return chain(salt, prompt.data)
