"""Clients that send too much, too slowly, or nonsense (A-05, A-10, A-11)."""

import pytest

from tests.support.fake_engine import END, FakeEngine, Wire, chunk
from tests.support.raw_client import RawClient, ask, chat, get, post, sized
from tests.support.running import quick, run, serving

LIMIT = 100_000


async def never(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


@pytest.mark.parametrize(("size", "status"), [(32_769, 200), (LIMIT - 1, 200), (LIMIT, 200), (LIMIT + 1, 413)])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_the_body_limit(size: int, status: int, framing: str):
    """A-05."""
    body = sized(size)
    assert len(body) == size
    request = post(body)
    if framing == "chunked":
        pieces = b"".join(chunk(body[at : at + 5000]) for at in range(0, len(body), 5000))
        request = b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + END

    async def test():
        limits = quick(body_bytes_max=LIMIT, body_s_max=5.0, linger_s_max=2.0)
        async with FakeEngine() as engine, serving(engine, limits=limits, longest=None) as served:
            answer = await ask(served.port, request)
            if status == 413:
                assert answer.code == "body_too_large"
                assert str(LIMIT) in answer.json()["error"]["message"]
                assert engine.seen == 0
                assert served.gateway.reception.refusals == {"body_too_large": 1}
                assert served.records[-1].status == 413
            else:
                assert answer.status == 200
                assert engine.requests[0].body == body
            served.assert_nothing_left()

    run(test())


def test_a_declared_length_over_the_limit_is_refused_before_the_body():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
            answer = await client.answer()
            assert (answer.status, answer.code) == (413, "body_too_large")
            assert await client.at_end()

    run(test())


def test_all_bodies_together_are_bounded():
    async def test():
        limits = quick(bodies_bytes_max=50_000, body_s_max=5.0)
        async with FakeEngine() as engine, serving(engine, limits=limits) as served:
            engine.script = never
            async with RawClient(served.port) as one, RawClient(served.port) as two:
                one.send(post(sized(30_000)))
                await engine.request(1)
                two.send(post(sized(30_000)))
                answer = await two.answer()
                assert (answer.status, answer.code) == (503, "bodies_full")
                assert "retry-after" in answer.headers
            await served.until_idle()
            assert (await ask(served.port, get("/health"))).status == 200
            served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("large", ["many lines", "one long line", "long target", "large head in one read"])
def test_the_head_limit(large: str):
    lines = {
        "many lines": "".join(f"X-{number}: 1\r\n" for number in range(200)),
        "one long line": "X: " + "y" * 70_000 + "\r\n",
        "long target": "",
        "large head in one read": "".join(f"X-{number}: {'y' * 1000}\r\n" for number in range(100)),
    }[large]
    target = "/v1/chat/completions" + ("?" + "a" * 70_000 if large == "long target" else "")

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(f"POST {target} HTTP/1.1\r\n{lines}Content-Length: 2\r\n\r\n{{}}".encode())
            answer = await client.answer()
            assert (answer.status, answer.code) == (431, "head_too_large")
            assert await client.at_end()
            assert engine.seen == 0

    run(test())


@pytest.mark.parametrize(
    ("sent", "limit"),
    [(b"POST /v1/cha", "head_s_max"), (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\nab", "body_s_max")],
)
def test_slow_senders_are_told_and_closed(sent: bytes, limit: str):
    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(sent)
            answer = await client.answer()
            assert (answer.status, answer.code) == (408, "request_timeout")
            assert limit in answer.json()["error"]["message"]
            assert await client.at_end()
            assert engine.seen == 0
            served.assert_nothing_left()

    run(test())


def test_an_idle_connection_is_closed_without_a_word():
    async def test():
        async with serving() as served, RawClient(served.port) as client:
            client.send(get("/health"))
            await client.answer()
            assert await client.at_end()
            assert not served.gateway.connections

    run(test())


def test_expect_100_continue():
    """A-10: 100 where the request will be read; the final answer and no 100 where it will not."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            body = chat()
            request = post(body, "/v1/chat/completions", "Expect: 100-continue")
            request_head = request[: -len(body)]
            async with RawClient(served.port) as client:
                client.send(request_head)
                assert (await client.answer()).status == 100
                client.send(body)
                assert (await client.answer()).status == 200
                assert "expect" not in engine.requests[0].headers
            refused = {
                413: request_head.replace(b"Content-Length: ", b"Content-Length: 999999999"),
                404: request_head.replace(b"/v1/chat/completions", b"/v1/nothing"),
                405: request_head.replace(b"POST", b"PUT"),
            }
            for status, sent in refused.items():
                assert (await ask(served.port, sent)).status == status

    run(test())


SMUGGLING = {
    "both framings": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both, the other way round": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "a list of lengths": b"Content-Length: 2, 3\r\n\r\n{}x",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a length with a sign": b"Content-Length: +2\r\n\r\n{}",
    "chunked in disguise": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Content-Length : 2\r\n\r\n{}",
    "a folded line": b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "a bare line feed": b"X: a\nContent-Length: 2\r\n\r\n{}",
    "a chunk size that is none": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk size too large": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
}


@pytest.mark.parametrize("smuggling", SMUGGLING)
def test_doubtful_framing_is_refused_and_the_connection_closed(smuggling: str):
    """A-11: nothing is forwarded, nothing after it is read."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + SMUGGLING[smuggling] + post(chat()))
            answer = await client.answer()
            assert (answer.status, answer.code) == (400, "malformed_http")
            assert await client.at_end()
            assert engine.seen == 0
            served.assert_nothing_left()

    run(test())


def test_an_offered_upgrade_is_ignored():
    """Java's HTTP client offers h2c with its first request, body and all."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
            client.send(post(chat(), "/v1/chat/completions", *lines))
            assert (await client.answer()).status == 200
            assert engine.requests[0].body == chat()
            assert not {"upgrade", "http2-settings", "connection"} & set(engine.requests[0].headers)
            client.send(get("/health"))
            assert (await client.answer()).status == 200
            client.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.answer()).status == 405

    run(test())
