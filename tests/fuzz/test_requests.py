"""The request machine, `gateway/server.py`: whichever way the network cuts, the same requests come out, and no bytes
break it or make two requests of one."""

import gzip
import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from isochrone.cluster import Cluster
from isochrone.gateway.app import Gateway, GatewaySettings
from isochrone.gateway.inbound import Inbound
from isochrone.gateway.reception import Reception
from isochrone.gateway.server import ClientConnection
from isochrone.nouns.settings import Settings
from tests.support.fuzzing import Notes, cuts, fuzzed, pieces
from tests.support.running import quick

LIMITS = quick(pipelined_max=10_000)
"""How many requests are read ahead depends on the cuts, by design; so it stays out of this."""


@dataclass(frozen=True)
class Seen:
    """One request as it is served."""

    method: bytes
    target: bytes
    lines: bytes
    body: bytes
    code: str


class Desk(Reception):
    """The front desk, which writes down what comes to it and answers by itself."""

    __slots__ = ()
    seen: list[Seen]

    def serve(self, client: ClientConnection, inbound: Inbound) -> None:
        error = inbound.error
        if error is None:
            self.seen.append(Seen(inbound.method, inbound.target, inbound.lines, b"".join(inbound.body), ""))
            self.gateway.bodies.release(inbound)
            client.answer(inbound, 200, b"", b"{}")
        else:  # how much of a bad head was read before its fault was seen depends on the cuts
            self.seen.append(Seen(b"", b"", b"", b"", error.code))
            super().serve(client, inbound)


GATEWAY = Gateway(Cluster(Settings(), random.Random(0)), GatewaySettings(limits=LIMITS))
DESK = Desk(
    GATEWAY, GATEWAY.reception.paths, GATEWAY.reception.routes, LIMITS, inject=True, resume=True
)  # fmt: skip
GATEWAY.reception = DESK


def served(parts: list[bytes]) -> tuple[list[Seen], Notes]:
    """What a connection makes of these reads. All accounts are even when it is gone."""
    DESK.seen = []
    connection, transport = ClientConnection(GATEWAY), Notes()
    connection.connection_made(transport)
    for part in parts:
        if transport.closed:
            break
        connection.data_received(part)
    connection.eof_received()
    connection.connection_lost(None)
    assert GATEWAY.bodies.held_bytes == 0
    assert GATEWAY.brain.faults == 0
    assert not GATEWAY.connections
    return DESK.seen, transport


@dataclass(frozen=True)
class Sent:
    """A well-formed request: its bytes, and what must be made of it."""

    wire: bytes = field(repr=False)
    seen: Seen


names = st.sampled_from([b"X-A", b"accept", b"X-B"])
values = st.binary(max_size=12).map(lambda raw: bytes(0x21 + byte % 0x5E for byte in raw))
targets = st.sampled_from([b"/v1/chat/completions", b"/v1/models/a%2Fb?x=1", b"/", b"/nowhere"])
bodies = st.binary(max_size=60) | st.sampled_from([b"POST / HTTP/1.1\r\n\r\n", b"0\r\n\r\n", b"\r\n\r\n", b"x" * 2000])

OFFERS = [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n"]
"""What a client may offer to do; its request is the same. The last is refused at once where the path is unknown."""


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """Any framing of a body that may look like a request itself."""
    body, target = draw(bodies), draw(targets)
    given_lines = b"".join(b"%b: %b\r\n" % (draw(names), draw(values)) for _ in range(draw(st.integers(0, 3))))
    head = b"POST %b HTTP/1.1\r\nHost: x\r\n%b" % (target, given_lines)
    head += draw(st.sampled_from(OFFERS if target.startswith(b"/v1/") else OFFERS[:-1]))
    packed = draw(st.booleans())
    content = gzip.compress(body, mtime=0) if packed else body
    head += b"Content-Encoding: gzip\r\n" if packed else b""
    if draw(st.booleans()):
        wire = head + b"Content-Length: %d\r\n\r\n" % len(content) + content
    else:
        wire = head + b"Transfer-Encoding: chunked\r\n\r\n"
        for part in pieces(content, draw(st.lists(st.integers(0, 80), max_size=3))):
            extension = draw(st.sampled_from([b"", b";a=b", b';q="x"']))
            wire += b"%x%b\r\n%b\r\n" % (len(part), extension, part)
        wire += b"0\r\n" + draw(st.sampled_from([b"", b"X-Trailer: 1\r\n"])) + b"\r\n"
    return Sent(wire, Seen(b"POST", target, given_lines, body, ""))


@fuzzed
@given(st.lists(requests(), min_size=1, max_size=4), cuts)
def test_each_request_comes_out_once_and_whole(sent: list[Sent], places: list[int]) -> None:
    wire = b"".join(one.wire for one in sent)
    seen, transport = served(pieces(wire, places))
    assert seen == [one.seen for one in sent]
    assert transport.written.count(b"HTTP/1.1 200 OK\r\n") == len(sent)


@fuzzed
@given(requests(), st.lists(bodies, max_size=3), st.sampled_from([b"", b"\r\n", b"x"]), st.integers(0, 3))
def test_a_head_that_came_before_is_read_as_if_it_never_had(
    first: Sent, rest: list[bytes], tail: bytes, off: int
) -> None:
    """`off`: by how much the length that is said differs from that of the body."""
    head, blank, body = first.wire.partition(b"\r\n\r\n")
    whole = b"Content-Length: %d" % len(body)
    wires = [first.wire] + [
        head.replace(whole, b"Content-Length: %d" % max(0, len(other) - off)) + blank + other + tail
        for other in (body, *rest)
    ]
    assert served(wires)[0] == served([b"".join(wires)])[0]


FRAGMENTS = [
    b"POST /v1/completions HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n", b"Host: x\r\n", b"\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999\r\n",
    b"content-length : 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"transfer-encoding:\tchunked\r\n", b" folded: 1\r\n",
    b"Expect: 100-continue\r\n", b"Expect: 200-ok\r\n", b"Connection: close\r\n", b"Connection: keep-alive, X-A\r\n",
    b"Upgrade: h2c\r\n", b"Connection: Upgrade\r\n", b"Content-Encoding: gzip\r\n", b"Content-Encoding: br\r\n",
    b"X-A: \xff\r\n", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"ffffffffffffffffff\r\n", b"5;a=b\r\nabcde\r\n",
    b"0\r\nX-T: 1\r\n\r\n", b"0\r\nContent-Length: 3\r\n\r\n", b"abcde", b"\n", b"\x00",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n", gzip.compress(b"hello", mtime=0), b"\r",
    b"OPTIONS * HTTP/1.1\r\n", b"X: " + b"y" * 3000 + b"\r\n", b"X-A: 1\r\n" * 101,
]  # fmt: skip


@fuzzed
@given(st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=6), max_size=14).map(b"".join), cuts)
def test_no_bytes_break_it_and_cuts_change_nothing(wire: bytes, places: list[int]) -> None:
    whole, _ = served([wire] if wire else [])
    cut, transport = served(pieces(wire, places))
    assert cut == whole
    assert transport.written.count(b"HTTP/1.1 ") - transport.written.count(b" 100 Continue") == len(cut)
