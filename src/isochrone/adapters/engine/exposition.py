"""Reads single metrics out of Prometheus text without parsing the rest.

A real vLLM answers 55 KB on /metrics, of which the gateway wants a dozen numbers, every second, from every instance.
`bytes.find` skips over the rest at several GB/s; only the lines that count are looked into.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class BadScrape(Exception):
    """The text cannot be trusted as a whole: the caller keeps what it had, with its age."""


class Sample(NamedTuple):
    """One line: its labels as they stand between the braces, and its value."""

    labels: bytes
    value: float

    def label_values(self) -> dict[str, str]:
        """Labels by name. Escapes in values are left as they are."""
        return {name.decode(): value.decode("utf-8", "replace") for name, value in _LABEL.findall(self.labels)}


def check(text: bytes) -> bytes:
    """The text with a line feed in front (so that each line can be searched by its start), or BadScrape.

    Every line of a whole answer ends in a line feed; a body without one at its end was cut. A body that does not
    start as Prometheus text (an HTML error page with status 200, say) is not looked into at all.
    """
    if not text:
        raise BadScrape("the body is empty")
    if not text.endswith(b"\n"):
        raise BadScrape("the body ends in the middle of a line")
    start = text[:256].lstrip()
    if start[:1] in (b"<", b"{", b"["):
        raise BadScrape(f"not Prometheus text: it starts with {start[:20]!r}")
    return b"\n" + text


def samples(text: bytes, name: str) -> Sequence[Sample]:
    """All samples of one metric, none where it is missing. `text` comes from `check`.

    Lines of one metric stand together (the format demands it), so that the search ends at the next comment line.
    """
    needle = b"\n" + name.encode()
    at = text.find(needle)
    found: list[Sample] = []
    while at >= 0:
        after = at + len(needle)
        separator = text[after : after + 1]
        if separator in (b"{", b" "):
            end = text.find(b"\n", after)
            found.append(_sample(text[after:end], name))
            if text.startswith(needle, end):
                at = end
                continue
            limit = text.find(b"\n#", end)
            at = text.find(needle, end, limit) if limit >= 0 else text.find(needle, end)
        else:  # a longer name that starts with ours
            at = text.find(needle, after)
    return found


def _sample(rest: bytes, name: str) -> Sample:
    """`{labels} value [timestamp]` or ` value [timestamp]`. A label's value may hold spaces and braces."""
    labels, brace, tail = rest.rpartition(b"}")
    try:
        value = float(tail.split(None, 1)[0])
    except (ValueError, IndexError):
        raise BadScrape(f"{name} has no number: {rest[-60:]!r}") from None
    if not math.isfinite(value):
        raise BadScrape(f"{name} is {value}")
    return Sample(labels[1:] if brace else b"", value)
