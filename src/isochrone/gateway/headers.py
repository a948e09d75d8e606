"""What happens to each header on its way through: a table from name to action, and heads as bytes.

Names are looked up as they came first; a spelling seen for the first time is lowered, and remembered while there is
room. Values are never changed: the parser has already refused line breaks in them.
"""

from enum import IntEnum
from http import HTTPStatus


class Action(IntEnum):
    """What to do with a header. PASS: forward it as it came. DROP: it is between two neighbours, or ours to set.
    NOTE: read it, and forward it. TAKE: read it, and keep it."""

    PASS = 0
    DROP = 1
    NOTE = 2
    TAKE = 3


HOP_BY_HOP = (
    b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"http2-settings",
)  # fmt: skip
"""RFC 9110 section 7.6.1, and what old clients send beside it."""

REQUEST_ACTIONS: dict[bytes, Action] = {
    **dict.fromkeys(HOP_BY_HOP, Action.DROP),
    b"host": Action.DROP,
    b"content-length": Action.TAKE,
    # Names by which other gateways let a caller choose an instance: ours must not listen, nor must the engine.
    b"x-gateway-destination-endpoint": Action.DROP,
    b"x-prefiller-host-port": Action.DROP,
    b"x-data-parallel-rank": Action.DROP,
    b"x-worker-id": Action.DROP,
    # Where a request came from is not for the client to say.
    b"forwarded": Action.DROP,
    b"x-forwarded-for": Action.DROP,
    b"x-forwarded-host": Action.DROP,
    b"x-forwarded-proto": Action.DROP,
    b"x-real-ip": Action.DROP,
    b"connection": Action.TAKE,
    b"expect": Action.TAKE,
    b"x-request-id": Action.TAKE,
    b"x-isochrone-route": Action.TAKE,
    b"x-isochrone-session": Action.TAKE,
    b"x-isochrone-sheddable": Action.TAKE,
    b"x-slo-ttft-ms": Action.TAKE,
    b"x-slo-tpot-ms": Action.TAKE,
    b"x-request-timeout-ms": Action.TAKE,
    b"x-session-id": Action.NOTE,
    b"content-type": Action.NOTE,
    b"content-encoding": Action.TAKE,  # a compressed body is unpacked here
    b"authorization": Action.TAKE,
    b"x-api-key": Action.TAKE,
    # CORS is the edge's business: an engine that hears of an origin would answer with its own idea of who may ask.
    b"origin": Action.TAKE,
    b"access-control-request-method": Action.TAKE,
    b"access-control-request-headers": Action.TAKE,
}
"""Client to engine. Credentials are taken: `credential_lines` passes them on where they are not ours to check."""

RESPONSE_ACTIONS: dict[bytes, Action] = {
    **dict.fromkeys(HOP_BY_HOP, Action.DROP),
    b"content-length": Action.TAKE,
    b"transfer-encoding": Action.TAKE,
    b"content-type": Action.NOTE,
    b"content-encoding": Action.NOTE,
    b"retry-after": Action.NOTE,
    b"access-control-allow-origin": Action.DROP,
    b"access-control-allow-credentials": Action.DROP,
    b"access-control-expose-headers": Action.DROP,
}
"""Engine to client."""

SPELLINGS_MAX = 1024
"""Spellings of header names remembered for each direction."""

OURS = b"x-isochrone-"
"""Prefix of headers that only the gateway sets: dropped where a neighbour sends one."""


class Table:
    """Actions by header name in any spelling."""

    def __init__(self, actions: dict[bytes, Action]) -> None:
        self._lower = actions
        self.seen: dict[bytes, tuple[Action, bytes]] = {}
        """Spelling -> (action, lower-case name)."""

    def learn(self, name: bytes) -> tuple[Action, bytes]:
        """Action for a spelling that is not in `seen`."""
        lower = name.lower()
        action = self._lower.get(lower)
        if action is None:
            action = Action.DROP if lower.startswith(OURS) else Action.PASS
        if len(self.seen) < SPELLINGS_MAX:
            self.seen[name] = (action, lower)
        return action, lower


REQUEST = Table(REQUEST_ACTIONS)
RESPONSE = Table(RESPONSE_ACTIONS)


def sort_out(table: Table, headers: list[tuple[bytes, bytes]]) -> tuple[bytes, dict[bytes, bytes]]:
    """Header lines to forward, joined, and the ones that were read, by lower-case name (the first of each wins)."""
    seen = table.seen
    lines: list[bytes] = []
    read: dict[bytes, bytes] = {}
    for name, value in headers:
        known = seen.get(name)
        action, lower = known if known is not None else table.learn(name)
        if action == 0:
            lines += (name, b": ", value, b"\r\n")
        elif action == 2:
            lines += (name, b": ", value, b"\r\n")
            read.setdefault(lower, value)
        elif action == 3:
            read.setdefault(lower, value)
    return b"".join(lines), read


def credential_lines(read: dict[bytes, bytes]) -> bytes:
    """The client's own credentials, for an engine that checks them itself."""
    lines = b""
    for name in (b"authorization", b"x-api-key"):
        if name in read:
            lines += b"%b: %b\r\n" % (name, read[name])
    return lines


def without(headers: list[tuple[bytes, bytes]], named: bytes) -> list[tuple[bytes, bytes]]:
    """The headers without those that the value of `connection` names as belonging to this hop."""
    drop = {token.strip().lower() for token in named.split(b",")} - {b"keep-alive", b"close", b""}
    if not drop:
        return headers
    return [(name, value) for name, value in headers if name.lower() not in drop]


STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def status_line(status: int) -> bytes:
    """`HTTP/1.1 200 OK` with its line end; an unknown status gets an empty phrase."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def id_line(instance: str) -> bytes:
    """The header line that names the instance."""
    return b"x-isochrone-instance: %b\r\n" % instance.encode("ascii", "backslashreplace")
