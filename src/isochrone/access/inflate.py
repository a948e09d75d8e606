"""gzip request bodies, unpacked as they come in, with bounds on what they may become."""

import zlib

from isochrone.access import wire
from isochrone.nouns.errors import ApiError

GZIP = frozenset((b"gzip", b"x-gzip"))
RATIO_MAX = 200
"""Bytes that one compressed byte may become; text reaches 20. More is an attack, or a test pattern."""
RATIO_FREE_BYTES = 256 * 1024
"""A body up to this may have any ratio."""
MEMBERS_MAX = 16
"""gzip members of one body: each costs a copy of what follows it."""
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class Inflater:
    """One body. Members after the first are unpacked too, as gzip allows."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._given = 0
        self._inflate = zlib.decompressobj(_GZIP_WINDOW)
        self._members = 0

    def feed(self, data: bytes) -> bytes | ApiError:
        """Unpacked bytes; an error where they are too many, or the input is no gzip."""
        self._taken += len(data)
        most = self._bytes_max
        if self._taken * RATIO_MAX < most:
            most = max(RATIO_FREE_BYTES, self._taken * RATIO_MAX)
        out = b""
        try:
            while data:
                self._members = self._members or 1
                out += self._inflate.decompress(data, max(1, most - self._given - len(out) + 1))
                if self._given + len(out) > most:
                    return self._too_large(most)
                data = self._inflate.unused_data
                if data:
                    self._members += 1
                    if self._members > MEMBERS_MAX:
                        return wire.bad_request("invalid_gzip", f"The gzip body has more than {MEMBERS_MAX} members.")
                    self._inflate = zlib.decompressobj(_GZIP_WINDOW)
        except zlib.error:
            return wire.bad_request("invalid_gzip", "The request body is labelled gzip and is not gzip.")
        self._given += len(out)
        return out

    def end(self) -> ApiError | None:
        """The body has ended: an error where something is missing."""
        if self._inflate.eof or not self._members:
            return None
        return wire.bad_request("invalid_gzip", "The gzip request body ends too early.")

    def _too_large(self, most: int) -> ApiError:
        if most == self._bytes_max:
            return wire.body_too_large(most)
        shown = f"The gzip request body unpacks to more than {RATIO_MAX} times its size. Send it without compression."
        return ApiError(413, "invalid_request_error", "gzip_ratio", shown)
