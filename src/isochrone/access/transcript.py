"""What a client has of a streamed answer, as text and as token ids, and from where it can be continued.

An engine's text may lag behind its ids: half a character is held back until it is whole, and with stop strings the
last few characters always are, lest they be the beginning of one. So a continuation starts at a *resume point*: after
ids that decode to exactly a beginning of the text that the client has. What the client has beyond it (`tail`) the next
instance says again; it is compared and cut out, not sent twice.

A point is known after an event of one token that brought text: the detokenizer has then caught up, and the whole text
is what was sent so far plus what stop strings hold back (a number of characters that does not change). An event of
several tokens says nothing about the last of them, nor does one without text. No point lies where a stop string may
have begun: the next instance looks for them in its own output only.
"""

from typing import NamedTuple

from msgspec import DecodeError
from msgspec.json import decode

REPLACEMENT = "�"
"""Stands for bytes that are no character: what ends with it may still change."""


class Point(NamedTuple):
    """A resume point."""

    text: str
    """What the ids decode to."""
    ids: bytes
    """Output ids as JSON, joined by commas."""
    tail: str
    """What the client has beyond `text`: cut out of what comes next."""

    @property
    def tokens(self) -> int:
        return count(self.ids)


def count(ids: bytes) -> int:
    """How many ids a list holds, written as JSON without brackets."""
    return ids.count(b",") + 1 if ids else 0


class Transcript:
    """Grows by one text and its ids an event. Cheap to write (it stays JSON), read only when an instance is lost."""

    __slots__ = ("_held_chars", "_stops", "base", "log")

    def __init__(self, stops: tuple[str, ...] = (), held_chars: int = 0) -> None:
        """`held_chars`: what the engine always holds back while more may follow."""
        self._stops = stops
        self._held_chars = held_chars
        self.base = Point("", b"", "")
        self.log = bytearray()
        """Since the base, for each event: text as inside a JSON string, newline, ids joined by commas, newline."""

    @property
    def kept_bytes(self) -> int:
        """About as much memory as it takes."""
        base = self.base
        return len(self.log) + len(base.text) + len(base.ids) + len(base.tail)

    def tokens(self) -> int:
        """Ids so far."""
        return self.base.tokens + sum(map(count, bytes(self.log).split(b"\n")[1::2]))

    def point(self, exact: bool) -> Point | None:
        """The latest resume point; None where there is none that can be used.

        `exact`: the next instance says the same again, so a tail can be cut. Else the point must be where the client
        is.
        """
        base = self.base
        try:
            texts, ids = self._events()
        except DecodeError:
            return None  # what the engine wrote was no JSON
        ends = [len(base.text)]
        for text in texts:
            ends.append(ends[-1] + len(text))
        said = base.text + "".join(texts)
        has = said if len(said) >= len(base.text) + len(base.tail) else base.text + base.tail
        for number in range(len(texts), -1, -1):
            end = ends[number]
            if number:
                if not texts[number - 1] or count(ids[number - 1]) != 1 or texts[number - 1].endswith(REPLACEMENT):
                    continue
                end += self._held_chars
            if end > len(has) or self._may_have_begun(has[:end]):
                continue
            if end < len(has) and not exact:
                return None
            return Point(has[:end], b",".join(filter(None, [base.ids, *ids[:number]])), has[end:])
        return None

    def begin_at(self, point: Point) -> None:
        """What comes from now on follows this point."""
        self.base = point
        self.log.clear()

    def _events(self) -> tuple[list[str], list[bytes]]:
        lines = bytes(self.log).split(b"\n")
        texts = decode(b'["' + b'","'.join(lines[:-1:2]) + b'"]') if len(lines) > 1 else []
        return texts, lines[1::2]

    def _may_have_begun(self, text: str) -> bool:
        """Whether the text ends with the beginning of a stop string."""
        return any(text.endswith(stop[:size]) for stop in self._stops for size in range(1, len(stop)))
