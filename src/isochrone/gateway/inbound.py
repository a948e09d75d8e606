"""One request as it came in, and the account of all bodies that are held in memory."""

from enum import IntEnum

from isochrone.access.inflate import Inflater
from isochrone.nouns.errors import ApiError

OVERLOADED_RETRY_S = 5


NOTHING_READ: dict[bytes, bytes] = {}
"""Stands for the headers of a head that is not whole yet. Compared by identity."""


class Phase(IntEnum):
    """Where reading stands: which limit in time applies."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    LINGER = 3
    """The last answer is out; bytes are read and dropped until the client closes."""


class Inbound:
    """The head sorted out, the body in one piece once it is whole."""

    __slots__ = (
        "body",
        "counted_bytes",
        "error",
        "head",
        "http11",
        "inflater",
        "keep",
        "lines",
        "method",
        "read",
        "reply_lines",
        "target",
        "whole",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.http11 = True
        self.head: list[tuple[bytes, bytes]] = []
        self.lines = b""
        """Header lines to forward."""
        self.read: dict[bytes, bytes] = NOTHING_READ
        """Headers that the gateway reads, by lower-case name; NOTHING_READ until the head is whole."""
        self.reply_lines = b""
        """Header lines of every answer to it, wherever that comes from: rate limits, CORS."""
        self.body: list[bytes] = []
        self.inflater: Inflater | None = None
        """Unpacks a compressed body as it comes in."""
        self.counted_bytes = 0
        """What `Bodies` has counted for this request."""
        self.whole = False
        """The body is complete."""
        self.keep = False
        """The client wants the connection kept."""
        self.error: ApiError | None = None
        """Refuse with this instead of serving, then close the connection."""

    def again(self, body: bytes) -> "Inbound":
        """A whole request with the same head, but for the length of its body."""
        request = Inbound()
        request.method, request.target, request.http11 = self.method, self.target, self.http11
        request.head, request.lines = self.head, self.lines
        request.read = {**self.read, b"content-length": b"%d" % len(body)}
        request.body = [body]
        request.whole, request.keep = True, self.keep
        return request

    def header(self, name: str) -> str | None:
        """Value of the first header of this name (lower case), None without one."""
        wanted = name.encode()
        for key, value in self.head:
            if key.lower() == wanted:
                return value.decode("latin-1")
        return None

    def head_without_upgrade(self) -> bytes:
        """The head as it would be had the client offered no other protocol."""
        lines = [b"%b %b HTTP/1.1\r\n" % (self.method, self.target)]
        lines += [b"%b: %b\r\n" % pair for pair in self.head if pair[0].lower() not in (b"upgrade", b"connection")]
        return b"".join(lines) + b"\r\n"


class Bodies:
    """Bytes of request bodies held by all connections together: one number, checked as bytes come in."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def take(self, inbound: Inbound, size: int) -> ApiError | None:
        """Count bytes that came in; an error if there is no room for them."""
        inbound.counted_bytes += size
        self.held_bytes += size
        return None if self.held_bytes <= self.bytes_max else no_room(self.bytes_max)

    def release(self, inbound: Inbound) -> None:
        """The request's body is no longer needed. May be called again."""
        self.held_bytes -= inbound.counted_bytes
        inbound.counted_bytes = 0


def no_room(bytes_max: int) -> ApiError:
    """503: all clients together send more than the gateway may hold."""
    return ApiError(
        503,
        "service_unavailable",
        "bodies_full",
        f"The gateway holds its limit of {bytes_max} bytes of request bodies (bodies_bytes_max). "
        f"Try again in {OVERLOADED_RETRY_S} s.",
        None,
        OVERLOADED_RETRY_S,
    )
