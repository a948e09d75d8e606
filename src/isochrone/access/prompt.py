"""What a prompt says, in template order, as bytes to hash and sizes to price.

Tools come first, then system text, then the messages with their roles: the order in which chat templates lay them out,
so that two conversations which begin alike have the same first bytes. Images, audio and files stand in it as a short
hash of their data or URL: different images differ, and base64 never counts as text.
"""

import re
from array import array

import msgspec
import xxhash
from msgspec import UNSET, Raw, UnsetType
from msgspec.json import Decoder

from isochrone.access.fields import Fields
from isochrone.nouns.request import PromptSize

CJK_LEADS = bytes([*range(0xE3, 0xEE), 0xEF])
"""First UTF-8 bytes of U+3000..U+D7FF (kana, Han, Hangul, their punctuation) and of U+F000..U+FFFF (full-width forms).
Each such character has three bytes. Yi and Arabic presentation forms fall in too, Han outside the basic plane does
not."""

LARGE_BYTES = 1024 * 1024
ELEMENTS_MAX = 1_000_000
"""Commas in a body over LARGE_BYTES (text included). With more, reading the prompt could take seconds, so it counts as
an unknown form."""
OBJECTS_MAX = 100_000
"""The same for opening braces."""


class Prompt(msgspec.Struct, gc=False):
    """A prompt without its JSON."""

    size: PromptSize
    data: bytes = b""
    """UTF-8 text in template order, or token ids as uint32 little-endian; empty where the form is not known."""
    is_ids: bool = False
    sequences: int = 1
    """Prompts in one request (a list of strings or of id lists): each gets its own answers."""


class Part(msgspec.Struct, gc=False):
    """One piece of a message's content, in OpenAI's or Anthropic's dialect."""

    text: str | None = None
    content: "str | list[Part | str] | None" = None
    """Anthropic's tool_result."""
    input: Raw | UnsetType = UNSET
    """Anthropic's tool_use."""
    image_url: Raw | UnsetType = UNSET
    input_audio: Raw | UnsetType = UNSET
    audio_url: Raw | UnsetType = UNSET
    video_url: Raw | UnsetType = UNSET
    image_embeds: Raw | UnsetType = UNSET
    source: Raw | UnsetType = UNSET
    file: Raw | UnsetType = UNSET
    file_data: Raw | UnsetType = UNSET


MEDIA = ("image_url", "input_audio", "audio_url", "video_url", "image_embeds", "source", "file", "file_data")
"""Fields of a part that hold something else than text."""

Content = str | list[Part | str] | None


class Message(msgspec.Struct, gc=False):
    """One chat message, or one item of a Responses `input`."""

    role: str | None = None
    content: Content = None
    tool_calls: Raw | UnsetType = UNSET
    arguments: str | None = None
    """A Responses function call."""
    output: Content = None
    """... and what it returned."""


_text = Decoder(str).decode
_texts = Decoder(list[str]).decode
_ids = Decoder(list[int]).decode
_id_lists = Decoder(list[list[int]]).decode
_messages = Decoder(list[Message]).decode
_content = Decoder(Content).decode
_base64 = re.compile(rb"[A-Za-z0-9+/=]{1000,}")
"""Runs without a space that are no text anyone writes."""
_first_in_list = re.compile(rb"\s*\[\s*(.)", re.DOTALL).match


def prompt_of(fields: Fields, body: bytes) -> Prompt:
    """The prompt of a body. An unknown form has a size from its bytes and nothing to hash; it is never an error."""
    try:
        if len(body) <= LARGE_BYTES or (body.count(b",") <= ELEMENTS_MAX and body.count(b"{") <= OBJECTS_MAX):
            return _prompt(fields)
    except (msgspec.DecodeError, OverflowError, RecursionError):
        pass
    return Prompt(PromptSize(text_bytes=len(_base64.sub(b"", body))))


def _prompt(fields: Fields) -> Prompt:
    raw = fields.messages
    if raw is not UNSET:
        return _conversation(fields, _messages(raw))
    raw = fields.prompt if fields.prompt is not UNSET else fields.input
    if raw is UNSET:
        raise msgspec.DecodeError("no known prompt field")
    text = bytes(raw)
    if text.startswith(b'"'):
        return _conversation(fields, [Message(content=_text(raw))])
    found = _first_in_list(text)
    first = found[1] if found else b""
    if first == b"{":
        return _conversation(fields, _messages(raw))
    if first == b'"':
        texts = _texts(raw)
        prompt = _conversation(fields, [Message(content=each) for each in texts])
        prompt.sequences = max(1, len(texts))
        return prompt
    if first == b"[":
        lists = _id_lists(text)
        return _token_ids([token for ids in lists for token in ids], max(1, len(lists)))
    return _token_ids(_ids(text), 1)


def _token_ids(ids: list[int], sequences: int) -> Prompt:
    data = array("I", ids).tobytes()
    return Prompt(PromptSize(token_ids=len(ids)), data, True, sequences)


class _Layout:
    """The pieces of one prompt as they are laid out."""

    __slots__ = ("frame_bytes", "images", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.frame_bytes = 0
        """Bytes of ours in the pieces: roles, separators and media hashes are hashed and are not text."""
        self.images = 0

    def frame(self, text: str) -> None:
        self.pieces.append(text)
        self.frame_bytes += len(text)

    def raw(self, raw: Raw) -> None:
        text = bytes(raw).decode()
        if text != "null":
            self.pieces.append(text)

    def media(self, raw: Raw) -> None:
        self.frame(f"\0{xxhash.xxh3_64_hexdigest(raw)}")
        self.images += 1

    def content(self, content: Content) -> None:
        if type(content) is str:
            self.pieces.append(content)
        elif content is not None:
            for part in content:
                if type(part) is str:
                    self.pieces.append(part)
                else:
                    self.part(part)  # type: ignore[arg-type]  # mypy does not narrow `type(...) is`

    def part(self, part: Part) -> None:
        if part.text is not None:
            self.pieces.append(part.text)
            return
        self.content(part.content)
        if part.input is not UNSET:
            self.raw(part.input)
        for name in MEDIA:
            raw = getattr(part, name)
            if raw is not UNSET:
                self.media(raw)


def _conversation(fields: Fields, messages: list[Message]) -> Prompt:
    layout = _Layout()
    pieces = layout.pieces
    if fields.tools is not UNSET:
        layout.raw(fields.tools)
    for system in (fields.system, fields.instructions):
        if system is not UNSET:
            layout.frame("\nsystem\n")
            layout.content(_content(system))
    for message in messages:
        frame = f"\n{message.role}\n"
        pieces.append(frame)
        layout.frame_bytes += len(frame)
        content = message.content
        if type(content) is str:
            pieces.append(content)
        else:
            layout.content(content)
        if message.tool_calls is not UNSET:
            layout.raw(message.tool_calls)
        if message.arguments is not None:
            pieces.append(message.arguments)
        if message.output is not None:
            layout.content(message.output)
    return _laid_out(layout, len(messages))


def _laid_out(layout: _Layout, messages: int) -> Prompt:
    data = "".join(layout.pieces).encode()
    cjk_bytes = 0 if data.isascii() else 3 * (len(data) - len(data.translate(None, CJK_LEADS)))
    text_bytes = max(0, len(data) - layout.frame_bytes - cjk_bytes)
    return Prompt(PromptSize(text_bytes, cjk_bytes, layout.images, 0, messages), data)
