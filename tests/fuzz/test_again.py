"""A head that came before is not parsed again (`gateway/samehead.py`): nothing shows it, whatever the bytes."""

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.test_answers import Lender, answered
from tests.fuzz.test_requests import served
from tests.support.fuzzing import fuzzed

REQUESTS = [
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
    b"POST / HTTP/1.0\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n",
]
ANSWERS = [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.0 400 Bad\r\n", b"HTTP/1.1 103 Hints\r\n"]
LINES = [
    b"Content-Length: %b\r\n", b"content-length:\t%b \r\n", b"Content-Length: %b\r\n", b"Content-Length: 5\r\n",
    b"X-Content-Length: %b\r\n", b"X-A: Content-Length: 5\r\n", b" content-length: %b\r\n", b"Content-Length: %b,\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Transfer-Encoding: chunked\r\n", b"X-A: 1\r\n",
    b"Expect: 100-continue\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Content-Encoding: gzip\r\n", b"X-A\r\n",
]  # fmt: skip
NUMBERS = [b"5", b"5", b"3", b"0", b"05", b"+5", b"5 5", b"", b"999999999", b"5000000000"]
BODIES = [
    b"abcde", b"abcde", b"abc", b"", b"5\r\nabcde\r\n0\r\n\r\n", b"\r\nabc", b"abcde\r\n", b"a\r\n\r\n",
    b"abcdePOST / HTTP/1.1\r\n\r\n", b"abcdeHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
]  # fmt: skip
lines = st.lists(st.sampled_from(LINES), min_size=1, max_size=3).map(b"".join)
fillings = st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(BODIES)), min_size=2, max_size=4)


def messages(start: bytes, head: bytes, filled: list[tuple[bytes, bytes]]) -> list[bytes]:
    """The same head, but for the number, before each of these bodies."""
    return [start + head.replace(b"%b", number) + b"\r\n" + body for number, body in filled]


@fuzzed
@given(st.sampled_from(REQUESTS), lines, fillings)
def test_of_a_request(start: bytes, head: bytes, filled: list[tuple[bytes, bytes]]) -> None:
    """All in one read, each has to be parsed."""
    wires = messages(start, head, filled)
    assert served(wires)[0] == served([b"".join(wires)])[0]


@fuzzed
@given(st.sampled_from(ANSWERS), lines, fillings)
def test_of_an_answer(start: bytes, head: bytes, filled: list[tuple[bytes, bytes]]) -> None:
    """An instance of which nothing is known, and one whose answers were like this."""
    lender = Lender()
    for wire in messages(start, head, filled):
        assert answered([wire], lender)[0] == answered([wire])[0]
