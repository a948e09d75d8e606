"""Token counts as engines report them, in all dialects -> one Usage."""

import msgspec
from msgspec.json import Decoder

from isochrone.nouns.request import Usage

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "completed": "stop",
}
"""Anthropic's and the Responses API's words for OpenAI's."""


class CachedTokens(msgspec.Struct, gc=False):
    """`prompt_tokens_details` or `input_tokens_details`."""

    cached_tokens: int | None = None


class UsageFields(msgspec.Struct, gc=False):
    """A `usage` object: Chat and Completions say prompt and completion, Responses and Messages say input and output."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: CachedTokens | None = None
    cache_read_input_tokens: int | None = None
    """Messages only: counted beside `input_tokens` there, not in it."""
    cache_creation_input_tokens: int | None = None


decode_usage = Decoder(UsageFields).decode


def usage_from(fields: UsageFields, finish_reason: str | None = None) -> Usage:
    """One Usage from any dialect."""
    reason = FINISH_REASONS.get(finish_reason, finish_reason) if finish_reason else None
    prompt_tokens = fields.prompt_tokens
    completion_tokens = fields.completion_tokens
    details = fields.prompt_tokens_details or fields.input_tokens_details
    cached_tokens = details.cached_tokens if details else None
    if prompt_tokens is None and fields.input_tokens is not None:
        beside = fields.cache_read_input_tokens or 0
        prompt_tokens = fields.input_tokens + beside + (fields.cache_creation_input_tokens or 0)
        if fields.cache_read_input_tokens is not None:
            cached_tokens = beside
    if completion_tokens is None:
        completion_tokens = fields.output_tokens
    return Usage(prompt_tokens, completion_tokens, cached_tokens, reason)
