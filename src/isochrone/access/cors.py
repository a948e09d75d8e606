"""Web pages of other origins: which may call the gateway, and what their browsers are told.

A browser asks first, with OPTIONS and without credentials. The gateway answers such a preflight itself, and adds its
own headers to every answer to an allowed origin; those of an engine never pass, since the edge alone knows who may ask.
"""

import re
from collections.abc import Iterable, Mapping

from isochrone.access.patterns import glob

EXPOSED = (
    b"x-isochrone-request-id, x-isochrone-instance, x-isochrone-attempts, retry-after, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
"""Headers of an answer that a page's script may read."""
ASKED_BYTES_MAX = 4096
"""Longest list of headers that a preflight may ask for; of a longer one none is allowed."""

_names = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]+").fullmatch


class Cors:
    """Allowed origins: `https://app.example`, patterns with `*`, or `*` alone for any."""

    def __init__(self, origins: Iterable[str], max_age_s: int = 600) -> None:
        origins = tuple(origins)
        self._any = "*" in origins
        self._patterns = tuple(glob(origin) for origin in origins)
        self._max_age_s = max_age_s

    def lines(self, origin: bytes) -> bytes:
        """Header lines of any answer to this origin; empty where it is not allowed."""
        allowed = self._allowed(origin)
        return allowed and allowed + b"access-control-expose-headers: %b\r\n" % EXPOSED

    def preflight(self, read: Mapping[bytes, bytes]) -> bytes | None:
        """Header lines of the 204 that answers a preflight; None where it is none, or not from an allowed origin.

        The allowed origin itself is not in them: `lines` adds it to every answer.
        """
        origin = read.get(b"origin")
        if origin is None or b"access-control-request-method" not in read or not self._allowed(origin):
            return None
        asked = read.get(b"access-control-request-headers", b"")
        headers = b""
        if asked and len(asked) <= ASKED_BYTES_MAX and _names(asked):
            headers = b"access-control-allow-headers: %b\r\n" % asked
        return b"access-control-allow-methods: GET, HEAD, POST\r\n%baccess-control-max-age: %d\r\n" % (
            headers,
            self._max_age_s,
        )

    def _allowed(self, origin: bytes) -> bytes:
        if self._any:
            return b"access-control-allow-origin: *\r\n"
        text = origin.decode("latin-1")
        if not any(pattern.fullmatch(text) for pattern in self._patterns):
            return b""
        return b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin
