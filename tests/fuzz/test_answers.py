"""The response machine, `gateway/upstream.py`: an instance's answer is the same however the network cuts it, is whole
only where it is, and no bytes break it."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.headers import RESPONSE, sort_out
from isochrone.gateway.samehead import SameHead
from isochrone.gateway.upstream import Head, Upstream
from tests.support.fuzzing import Notes, cuts, fuzzed, pieces
from tests.support.running import QUICK


class Lender:
    """Stands where the pool is: counts what comes back."""

    limits = QUICK
    base = host_line = authorization = b""

    def __init__(self) -> None:
        self.made = self.released = self.forgotten = 0
        self.head: SameHead[Head] = SameHead()

    def release(self, upstream: Upstream) -> None:
        self.released += 1

    def forget(self, upstream: Upstream) -> None:
        self.forgotten += 1


@dataclass
class Taker:
    """Stands where the exchange and its answer are: writes down what it is told."""

    outgoing = b""
    status: int = 0
    lines: bytes = b""
    body: bytes = b""
    end: str = ""
    answer: Any = field(default=None, compare=False)
    upstream: Any = field(default=None, compare=False)
    client = SimpleNamespace(full_since=0)

    def request_head(self, base: bytes, host_line: bytes, authorization: bytes) -> bytes:
        return b"GET / HTTP/1.1\r\n\r\n"

    def head_arrived(self, status: int, lines: bytes, read: dict[bytes, bytes], complete: bool) -> bool:
        assert not self.end
        assert self.answer is None
        self.status, self.lines, self.answer = status, lines, self
        framing = {b"content-length", b"transfer-encoding"}
        return not complete and status not in (204, 304) and framing.isdisjoint(read)

    def take(self, body: bytes, last: bool) -> None:
        assert not self.end, "told after its end"
        self.body += body
        self.end = "whole" if last else ""

    def garbled(self, why: str) -> None:
        assert not self.end
        self.end = "garbled"

    def lost(self, why: str) -> None:
        assert not self.end
        self.end = "lost"


def answered(parts: list[bytes], lender: Lender | None = None) -> tuple[Taker, Lender]:
    """What is made of these reads and the end of the connection after them."""
    lender, taker, transport = lender or Lender(), Taker(), Notes()
    lender.forgotten = 0
    upstream = Upstream(lender)  # type: ignore[arg-type]
    upstream.connection_made(transport)
    upstream.start(taker)  # type: ignore[arg-type]
    for part in parts:
        if transport.closed:
            break
        upstream.data_received(part)
    if not transport.closed:
        upstream.eof_received()
    upstream.connection_lost(None)
    assert taker.end or transport.closed
    assert lender.forgotten == 1
    return taker, lender


headers = st.lists(
    st.sampled_from([(b"X-A", b"1"), (b"x-a", b"2"), (b"Content-Type", b"text/event-stream")]), max_size=3
)
bodies = st.binary(max_size=60) | st.sampled_from(
    [b"HTTP/1.1 200 OK\r\n\r\n", b"0\r\n\r\n", b"x" * 2000, b"data: 1\n\n"]
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, int, tuple[tuple[bytes, bytes], ...], bytes, bool]:
    """Bytes, status, headers, body, and whether the connection may be used again."""
    status, body, framing = draw(st.sampled_from([200, 400, 503])), draw(bodies), draw(st.integers(0, 2))
    listed = [*draw(headers)]
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    rest = body
    if framing == 0:
        listed.append((b"Content-Length", b"%d" % len(body)))
    elif framing == 1:
        listed.append((b"Transfer-Encoding", b"chunked"))
        parts = pieces(body, draw(st.lists(st.integers(0, 80), max_size=3)))
        rest = b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    head = b"HTTP/1.1 %d Status\r\n" % status + b"".join(b"%b: %b\r\n" % pair for pair in listed) + b"\r\n"
    return interim + head + rest, status, tuple(listed), body, framing != 2


@fuzzed
@given(answers(), cuts)
def test_each_answer_comes_out_whole(
    answer: tuple[bytes, int, tuple[tuple[bytes, bytes], ...], bytes, bool], places: list[int]
) -> None:
    wire, status, listed, body, again = answer
    taker, lender = answered(pieces(wire, places))
    lines, _ = sort_out(RESPONSE, [*listed])
    assert (taker.status, taker.lines, taker.body, taker.end) == (status, lines, body, "whole")
    assert lender.released == again


@fuzzed
@given(answers(), st.lists(bodies, min_size=1, max_size=3), st.sampled_from([b"", b"\r\n", b"x"]), st.integers(0, 3))
def test_a_head_that_came_before_is_read_as_if_it_never_had(
    first: tuple[bytes, int, tuple[tuple[bytes, bytes], ...], bytes, bool], rest: list[bytes], tail: bytes, off: int
) -> None:
    """`off`: by how much the length that is said differs from that of the body."""
    wire, _, _, body, _ = first
    lender = Lender()
    answered([wire], lender)
    for other in (body, *rest):
        said = b"%d" % max(0, len(other) - off)
        like = wire.replace(b"Content-Length: %d" % len(body), b"Content-Length: " + said)
        like = like.removesuffix(body) + other + tail
        assert answered([like], lender)[0] == answered([like])[0]


@fuzzed
@given(answers(), cuts, st.data())
def test_what_breaks_off_never_looks_whole(
    answer: tuple[bytes, int, tuple[tuple[bytes, bytes], ...], bytes, bool], places: list[int], data: st.DataObject
) -> None:
    wire, _, _, body, framed = answer
    end = data.draw(st.integers(0, len(wire) - 1))
    taker, lender = answered(pieces(wire[:end], places))
    assert body.startswith(taker.body)
    assert lender.released == 0 or taker.body == body
    assert taker.end != "whole" or not framed or taker.body == body


FRAGMENTS = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.1 101 Switching\r\n", b"HTTP/1.1 103 Hints\r\n",
    b"HTTP/1.0 200\r\n", b"HTTP/1.1 999999 X\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n",
    b"Content-Length: x\r\n", b"\r\n", b"\n", b"\r", b"Transfer-Encoding: chunked\r\n",
    b"transfer-encoding: gzip\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"Connection: Upgrade\r\n",
    b"5\r\nabcde\r\n", b"0\r\n\r\n", b"fffffffffffffffff\r\n", b"abcde", b"X: \xff\r\n", b" folded\r\n",
    b"data: 1\n\n", b"\x00", b"HTTP/2 200\r\n", b"X: " + b"y" * 3000 + b"\r\n",
]  # fmt: skip


@fuzzed
@given(st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=6), max_size=14).map(b"".join), cuts)
def test_no_bytes_break_it_and_cuts_change_little(wire: bytes, places: list[int]) -> None:
    """Where the bytes go wrong, a cut decides how much of the body before that place has passed; nothing else."""
    whole, _ = answered([wire] if wire else [])
    cut, _ = answered(pieces(wire, places))
    if whole.end == "whole" or cut.end == "whole":
        assert cut == whole
    elif whole.status:
        assert (cut.status, cut.lines) == (whole.status, whole.lines)
        assert cut.body.startswith(whole.body)
