"""Reads token times and usage out of an answer's body, at well under a microsecond per event.

The first event with text is decoded as JSON; it shows how this engine spells the text's key. From then on tokens are
counted by searching those bytes, which cannot occur inside a JSON string (its quotes would be escaped).
"""

import msgspec

_SPELLINGS = (b'"content":"', b'"content": "', b'"text":"', b'"text": "')
_EVENT_END = b"\n\n"
_DONE = b"data: [DONE]\n\n"
UNFINISHED_EVENT_BYTES_MAX = 1 << 20
"""An event longer than this is an error, not a reason to buffer on."""


class BadStream(Exception):
    """The bytes are not the SSE stream of an OpenAI-like API; the text says why."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_decoder = msgspec.json.Decoder(_Answer)


class StreamMeter:
    """Fed the body of a stream in any pieces; events end with an empty line (LF, as all engines that we know send)."""

    __slots__ = ("_carry", "_empty", "_last_usage", "_text_key", "done", "events", "failed", "first_at", "last_at")

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.events = 0
        """Events with text."""
        self.done = False
        """`data: [DONE]` was seen: the stream is whole."""
        self.failed = False
        """The engine sent an error inside the stream."""
        self._carry = b""
        self._text_key = b""
        self._empty = b""
        self._last_usage = b""

    def feed(self, piece: bytes, now: float) -> None:
        """Take the next bytes of the body, which came at `now`."""
        if self._carry:
            piece = self._carry + piece
            self._carry = b""
        if not piece.endswith(_EVENT_END):
            whole = piece.rfind(_EVENT_END) + 2
            if whole == 1:
                whole = 0
            piece, self._carry = piece[:whole], piece[whole:]
            if len(self._carry) > UNFINISHED_EVENT_BYTES_MAX:
                raise BadStream("an event longer than 1 MiB")
            if not piece:
                return
        if not self._text_key:
            self._learn(piece)
        key = self._text_key
        if key and (count := piece.count(key) - piece.count(self._empty)):
            self.events += count
            self.last_at = now
            if self.first_at is None:
                self.first_at = now
        if b'"usage":' in piece:
            self._last_usage = piece
        if piece.endswith(_DONE):
            self.done = True
        elif piece.startswith(b'data: {"error"') or b'\n\ndata: {"error"' in piece:
            self.failed = True

    def _learn(self, events: bytes) -> None:
        """Find the first event with text and remember how its key is spelt."""
        for event in events.split(_EVENT_END):
            if not event.startswith(b"data: {"):
                continue
            answer = _decode(event[6:])
            if any(choice.text or (choice.delta and choice.delta.content) for choice in answer.choices):
                self._text_key = next((key for key in _SPELLINGS if key in event), b"")
                if not self._text_key:
                    raise BadStream("text under an unknown key")
                self._empty = self._text_key + b'"'
                return

    def usage(self) -> tuple[int | None, int | None, int | None]:
        """(prompt, output, cached) tokens as the engine said at the end; None where it did not."""
        for event in reversed(self._last_usage.split(_EVENT_END)):
            if event.startswith(b"data: {") and (usage := _decode(event[6:]).usage) is not None:
                return _counts(usage)
        return None, None, None


def whole_answer_usage(body: bytes) -> tuple[int | None, int | None, int | None]:
    """(prompt, output, cached) tokens of an answer that was not streamed."""
    usage = _decode(body).usage
    return (None, None, None) if usage is None else _counts(usage)


def _decode(text: bytes) -> _Answer:
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError as wrong:
        raise BadStream(f"not the JSON of an answer: {wrong}") from None


def _counts(usage: _Usage) -> tuple[int | None, int | None, int | None]:
    details = usage.prompt_tokens_details
    return usage.prompt_tokens, usage.completion_tokens, details.cached_tokens if details else None
