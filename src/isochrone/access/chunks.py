"""The JSON inside a stream's events: the few fields that metering reads, in any dialect."""

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.json import Decoder

from isochrone.access.usage import UsageFields


def given(value: Raw | UnsetType) -> bool:
    """True for a field that is there and not null or empty. (A decoder cannot mix Raw with None.)"""
    return value is not UNSET and bytes(value) not in (b"null", b"[]", b"{}", b'""')


class Delta(msgspec.Struct, gc=False):
    """What a chat event adds to its choice."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Raw | UnsetType = UNSET
    function_call: Raw | UnsetType = UNSET
    stop_reason: str | None = None
    """Messages: in `message_delta`."""

    @property
    def has_output(self) -> bool:
        """True where it carries text or a tool call."""
        if self.content or self.reasoning_content or self.reasoning or self.refusal:
            return True
        return given(self.tool_calls) or given(self.function_call)


class Choice(msgspec.Struct, gc=False):
    """One choice of a chat or completions event."""

    delta: Delta | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        """Output tokens: exact where the ids are given, else one for anything but a mere role or a mere end."""
        if self.token_ids:
            return len(self.token_ids)
        if self.text or (self.delta is not None and self.delta.has_output):
            return 1
        opens = self.delta is not None and self.delta.role is not None
        return 0 if opens or self.finish_reason else 1


class Incomplete(msgspec.Struct, gc=False):
    """Why a Responses answer is incomplete."""

    reason: str | None = None


class Whole(msgspec.Struct, gc=False):
    """`response` in the last event of the Responses API, `message` in the first one of Messages."""

    usage: UsageFields | None = None
    status: str | None = None
    incomplete_details: Incomplete | None = None


class Chunk(msgspec.Struct, gc=False):
    """The data of one event, in any dialect. All that is not here is skipped."""

    choices: list[Choice] | UnsetType | None = UNSET
    usage: UsageFields | None = None
    error: Raw | UnsetType = UNSET
    object: str | None = None
    type: str | None = None
    delta: Delta | str | None = None
    response: Whole | None = None
    message: Whole | str | None = None


decode_chunk = Decoder(Chunk).decode
