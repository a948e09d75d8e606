"""What resuming a stream can promise, decided from the request's body before it is sent.

A continuation is a second request, to `/v1/completions`, of the prompt's token ids and the answer's so far. It is the
same answer only where nothing but the tokens before it decides the next token.

| promise | when |
|---|---|
| `EXACT` | greedy: `temperature` is 0 |
| `FRESH` | sampling: the rest is a new sample from the same distribution. A `seed` does not help: engines start its \
generator anew with each request |
| `REFUSED` | the engine's state is more than the tokens: several choices, tools and grammars, penalties and \
`min_tokens` (they count output tokens only), logprobs, beams; and every field that is not known here |

`docs/concepts/resume.md` is the same for operators. Costs about 3 us a streamed request.
"""

import enum
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.json import Decoder, decode

from isochrone.access.fields import LONG_KEYS
from isochrone.access.inject import options_of
from isochrone.access.paths import Kind, Route
from isochrone.access.scan import Scan

CARRIED = frozenset({
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos",
    "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "logit_bias",
    "allowed_token_ids", "priority", "cache_salt",
})  # fmt: skip
"""Fields that the continuation takes over as they are."""

SETTLED = frozenset({
    "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "user", "metadata",
    "store", "service_tier", "chat_template", "chat_template_kwargs", "add_generation_prompt", "add_special_tokens",
    "continue_final_message", "documents", "reasoning_effort", "include_reasoning", "parallel_tool_calls",
    "session_id", "prompt_cache_key", "safety_identifier", "request_id", "return_tokens_as_token_ids",
})  # fmt: skip
"""Fields whose effect is in the prompt's ids already, that are set anew, or that say nothing about the answer."""

HARMLESS: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "modalities": (["text"],),
}
"""Values beside null, false, 0 and empty ones that mean the same as leaving the field out."""

PARAMS_BYTES_MAX = 16 * 1024
"""Longest body, without messages and prompt, whose stream may be resumed."""


class Promise(enum.StrEnum):
    """How good a continuation is."""

    EXACT = "exact"
    FRESH = "fresh"
    REFUSED = "refused"


class Contract(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is kept of a body so that its stream can be resumed."""

    promise: Promise
    why: str = ""
    """What refuses."""
    chat: bool = False
    params: bytes = b""
    """The carried fields as JSON members, joined by commas."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    held_chars: int = 0
    """Text that the engine holds back while more may follow: a stop string may have begun in it."""
    wants_usage: bool = False
    """The client asked for the usage event."""


_fields = Decoder(dict[str, Raw]).decode


def contract_of(route: Route, scan: Scan) -> Contract:
    """The contract of one streamed request. Never raises: what cannot be read is refused."""
    if route.kind not in (Kind.CHAT, Kind.COMPLETIONS):
        return refused("only chat and completions can be continued")
    if scan.choices != 1:
        return refused("more than one choice")
    if scan.size.images:
        return refused("images are not in the token ids")
    if len(scan.rest) > PARAMS_BYTES_MAX:
        return refused(f"parameters of more than {PARAMS_BYTES_MAX} bytes")
    try:
        return _read(route, scan, _fields(scan.rest))
    except (msgspec.DecodeError, RecursionError):
        return refused("the body has an odd form")


def refused(why: str) -> Contract:
    """No continuation; the stream's end is told to the client."""
    return Contract(promise=Promise.REFUSED, why=why)


def _read(route: Route, scan: Scan, fields: dict[str, Raw]) -> Contract:
    params = []
    for key, raw in fields.items():
        if key in CARRIED:
            params.append(b"%b:%b" % (msgspec.json.encode(key), raw))
        elif key not in SETTLED and not _is_harmless(key, raw):
            return refused(f"the request has {key[:64]!r}")
    if "return_token_ids" in fields:
        return refused("the request names 'return_token_ids' itself")
    options = options_of(scan)
    if options.continuous_usage_stats:
        return refused("usage in each event")
    if route.kind is Kind.COMPLETIONS and bytes(fields.get("max_tokens", b"")) == b"null":
        return refused("max_tokens is null, which is 16 for one engine and no bound for another")
    stop = _value(fields, "stop")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(one, str) for one in stops):
        return refused("stop strings of an odd form")
    holds = bool(stops) and _value(fields, "include_stop_str_in_output") is not True
    temperature = _value(fields, "temperature")
    greedy = isinstance(temperature, int | float) and temperature == 0
    return Contract(
        promise=Promise.EXACT if greedy else Promise.FRESH,
        chat=route.kind is Kind.CHAT,
        params=b",".join(params),
        max_tokens=_max_tokens(route, fields),
        stop=stops,
        held_chars=max(map(len, stops)) - 1 if holds else 0,
        wants_usage=options.include_usage is True,
    )


COMPLETION_TOKENS_DEFAULT = 16
"""max_tokens of `/v1/completions` where none is given, as in OpenAI's API."""


def _max_tokens(route: Route, fields: dict[str, Raw]) -> int | None:
    """None: as many as the context has room for. A value that engines refuse ends the request before this matters."""
    if route.kind is Kind.CHAT:
        given = _value(fields, "max_completion_tokens")
        if given is None:
            given = _value(fields, "max_tokens")
    else:
        given = _value(fields, "max_tokens") if "max_tokens" in fields else COMPLETION_TOKENS_DEFAULT
    return given if isinstance(given, int) else None


def _value(fields: dict[str, Raw], key: str) -> Any:
    raw = fields.get(key)
    return None if raw is None else decode(raw)


def _is_harmless(key: str, raw: Raw) -> bool:
    value = decode(raw)
    if key in LONG_KEYS:  # a long value stands as 0 here
        return value is None or value == []
    if key == "logprobs":  # 0 asks for them, without alternatives
        return value is None or value is False
    return not value or value in HARMLESS.get(key, ())
