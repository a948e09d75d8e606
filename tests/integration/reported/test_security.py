"""Reported cases of security and privacy: X-01, X-03, X-04, X-05, X-07."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from isochrone.gateway import names
from isochrone.gateway.brain import Brain
from isochrone.nouns.events import Arrived
from tests.support import calls
from tests.support import service as whole
from tests.support.fake_engine import FakeEngine, Wire, head, json_answer, raw
from tests.support.raw_client import ask, chat, get, post
from tests.support.running import run, serving

ANSWER = json_answer({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


# adding instances over the admin API.

HOSTILE = [
    "file:///etc/passwd",
    "gopher://127.0.0.1:70",
    "http://169.254.169.254/latest",
    "http://[fe80::1]:8000",
    "http://[::ffff:169.254.169.254]:8000",
    "http://2130706433:8000",
    "http://0x7f.1:8000",
    "http://0.0.0.0:8000",
    "http://user:secret@127.0.0.1:8000",
    "http://127.0.0.1:8000/?x=1",
    "http://127.0.0.1:8000/#x",
    "http://127.0.0.1:70000",
    "http://",
    "//127.0.0.1",
]


@pytest.mark.parametrize("url", HOSTILE)
def test_x01_only_plain_addresses_of_engines_can_be_added(url: str) -> None:
    async def test() -> None:
        async with whole.serving() as service:
            answer = await whole.ask(service, "/admin/instances", "POST", {"url": url})
            assert answer.status in (400, 403)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert b"secret" not in answer.body
            assert service.cluster.instances() == []
            assert service.gateway.pools == {}

    run(test())


def test_x01_ranges_and_names_that_are_allowed() -> None:
    async def test() -> None:
        allow = ["10.0.0.0/8", "gpu-*.test", "192.168.7.*"]
        async with whole.serving(admin={"port": 0, "allow": allow}) as service:
            for host, status in (
                ("10.1.2.3", 201), ("192.168.7.4", 201), ("gpu-1.test", 201),
                ("11.1.2.3", 403), ("127.0.0.1", 403), ("[::1]", 403), ("localhost", 403), ("gpu-1.test.evil", 403),
            ):  # fmt: skip
                answer = await whole.ask(service, "/admin/instances", "POST", {"url": f"http://{host}:9"})
                assert answer.status == status, host

    run(test())


def test_x01_the_address_that_is_checked_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is harmless when it is added, and a loopback address the next time."""
    answers = iter([["10.9.9.9"]])

    async def lookup(host: str, port: int) -> list[str]:
        return next(answers, ["127.0.0.1"])

    monkeypatch.setattr("isochrone.gateway.admin_guard.lookup", lookup)
    monkeypatch.setattr(names, "lookup", lookup)

    async def test() -> None:
        async with FakeEngine() as inside, whole.serving() as service:
            body = {"url": f"http://rebound.test:{inside.port}", "id": "rebound", "models": ["m"]}
            assert (await whole.ask(service, "/admin/instances", "POST", body)).status == 201
            heart = service.watch.instances["rebound"].heart
            while sum(heart.verdicts.values()) < 3:
                await asyncio.sleep(0.005)
            assert (await ask(service.port, post(chat()))).status == 503
            assert (inside.connects, inside.seen) == (0, 0)

    run(test())


def test_x01_redirects_are_not_followed_and_ids_not_taken_over() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, FakeEngine() as elsewhere, whole.serving(engine) as service:
            moved = raw(head(307, f"location: {elsewhere.url}/v1/completions", "content-length: 0"))
            engine.script = moved
            taken = await whole.ask(service, "/admin/instances", "POST", {"url": elsewhere.url, "id": engine.id})
            assert (taken.status, taken.json()["error"]["code"]) == (409, "instance_exists")
            while not service.cluster.can_serve():
                await asyncio.sleep(0.002)
            assert (await ask(service.port, post(chat()))).status == 307
            engine.scripts["/health"] = engine.scripts["/metrics"] = engine.scripts["/v1/models"] = moved
            seen = engine.seen
            while engine.seen < seen + 6:
                await asyncio.sleep(0.005)
            assert elsewhere.seen == 0

    run(test())


def test_x01_admin_calls_need_the_admin_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")

    async def test() -> None:
        async with whole.serving(admin={"port": 0, "key": f"file:{tmp_path / 'key'}"}) as service:
            url = f"http://127.0.0.1:{service.admin_port}"

            def call(method: str, path: str, body: object = None, key: str | None = None) -> calls.Answer:
                connection = calls.connect(url)
                lines = {} if key is None else {"Authorization": f"Bearer {key}"}
                connection.request(method, path, None if body is None else json.dumps(body), lines)
                response = connection.getresponse()
                answer = calls.Answer(response.status, dict(response.getheaders()), response.read())
                connection.close()
                return answer

            body = {"url": "http://127.0.0.1:9", "id": "x"}
            for key in (None, "wrong", "", "s3cret2", "\u00e9"):
                refused = await asyncio.to_thread(call, "POST", "/admin/instances", body, key)
                assert refused.status == 401
                assert b"s3cret" not in refused.body
                assert (await asyncio.to_thread(call, "GET", "/metrics", None, key)).status == 401
            assert service.cluster.instances() == []
            assert (await asyncio.to_thread(call, "GET", "/health")).status == 200
            assert (await asyncio.to_thread(call, "POST", "/admin/instances", body, "s3cret")).status == 201
            assert (await asyncio.to_thread(call, "GET", "/metrics", None, "s3cret")).status == 200
            assert "s3cret" not in repr(service.configuration)
            shown = await asyncio.to_thread(call, "GET", "/admin/settings", None, "s3cret")
            assert b"s3cret" not in shown.body

    run(test())


#

STEERING = [
    "x-gateway-destination-endpoint", "x-prefiller-host-port", "x-data-parallel-rank", "x-forwarded-for", "x-worker-id",
    "forwarded", "x-real-ip", "x-isochrone-instance", "x-isochrone-attempts", "x-isochrone-anything",
]  # fmt: skip


def test_x03_clients_do_not_choose_where_they_go() -> None:
    """In any case, twice, and in a trailer."""

    async def test() -> None:
        async with FakeEngine() as engine, FakeEngine() as other, serving(engine) as served:
            lines = [f"{spelt}: {other.id}" for name in STEERING for spelt in (name, name.upper(), name.title())]
            answer = await ask(served.port, post(chat(), "/v1/chat/completions", *lines))
            assert answer.headers["x-isochrone-instance"] == engine.id
            body = chat()
            trailer = "".join(f"{line}\r\n" for line in lines).encode()
            chunked = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailer)
            request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked
            assert (await ask(served.port, request)).status == 200
            for received in engine.requests:
                assert not set(STEERING) & set(received.headers)
                assert other.id.encode() not in received.head
            assert other.seen == 0

    run(test())


#

ODD = {
    "percent": "a%0d%0aset-cookie:%20x",
    "escape": "a\x1b[31mred",
    "line separator": "a\u2028b".encode().decode("latin-1"),
    "long": "x" * 60_000,
    "quotes": 'a","status":200,"x":"',
}


@pytest.mark.parametrize("odd", ODD)
def test_x04_no_client_writes_its_own_log_lines(odd: str, tmp_path: Path) -> None:
    value = ODD[odd]

    async def test() -> None:
        async with FakeEngine() as engine:
            engine.script = ANSWER
            async with whole.serving(engine, access_log=str(tmp_path / "log")) as service:
                while not service.cluster.can_serve():
                    await asyncio.sleep(0.002)
                lines = (f"X-Request-Id: {value}", f"User-Agent: {value}")
                requests = [
                    _latin(post(chat(), "/v1/chat/completions"), *lines),
                    _latin(post(chat(model=value), "/v1/chat/completions"), *lines),
                    _latin(get("/" + value.replace("\x1b", "").replace("\u2028", "").replace(" ", "")), *lines),
                ]
                for request in requests:
                    answer = await ask(service.port, request)
                    assert value not in answer.headers.values()
                    assert "set-cookie" not in answer.headers
        records = [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
        assert len(records) == 3
        assert all(len(record["id"]) == 16 and record["id"].isalnum() for record in records)
        assert all(len(line) < 2000 for line in (tmp_path / "log").read_bytes().splitlines())
        assert b"\x1b" not in (tmp_path / "log").read_bytes()

    run(test())


def _latin(request: bytes, *lines: str) -> bytes:
    """The request with these header lines, byte for byte."""
    request_head, _, body = request.partition(b"\r\n\r\n")
    return b"".join((request_head, *(b"\r\n" + line.encode("latin-1") for line in lines), b"\r\n\r\n", body))


def test_x04_a_raw_line_break_is_no_header(tmp_path: Path) -> None:
    async def test() -> None:
        async with FakeEngine() as engine, serving(engine) as served:
            for broken in (b"a\nb: c", b"a\rb: c", b"a\x00b"):
                request = post(chat()).replace(b"Host: gateway", b"Host: gateway\r\nX-Request-Id: " + broken)
                answer = await ask(served.port, request)
                assert answer.status in (200, 400)
                assert answer.headers.get("x-isochrone-request-id", "0" * 16).isalnum()
            assert all(b"a\nb" not in received.head and b"\x00" not in received.head for received in engine.requests)

    run(test())


MARKER = "a-most-private-word"


def test_x05_prompts_are_in_no_log_at_any_level(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a prompt, in a tool's argument, in a refused body, echoed by the engine's error, with a bug of ours."""
    caplog.set_level(logging.DEBUG)
    tool = {"id": "1", "type": "function", "function": {"name": "f", "arguments": MARKER}}
    step = Brain._step

    def failing(self: Brain, event: Any) -> None:
        if isinstance(event, Arrived) and event.request.max_tokens == 13:
            monkeypatch.setattr(self.cluster, "handle", _bug)
        step(self, event)
        monkeypatch.undo()

    async def echo(wire: Wire) -> None:
        await json_answer({"error": {"message": wire.request.body.decode()}}, 500)(wire)

    async def test() -> None:
        async with FakeEngine() as engine:
            engine.script = ANSWER
            async with whole.serving(engine, access_log=str(tmp_path / "log")) as service:
                while not service.cluster.can_serve():
                    await asyncio.sleep(0.002)

                async def send(body: bytes) -> int:
                    return (await ask(service.port, post(body))).status

                assert await send(chat(content=MARKER)) == 200
                assert await send(chat(messages=[{"role": "assistant", "tool_calls": [tool]}])) == 200
                assert await send(chat(content=MARKER)[:-5]) == 400
                assert await send(chat(content=MARKER, model="none")) == 404
                engine.script = echo
                assert await send(chat(content=MARKER)) == 500
                monkeypatch.setattr(Brain, "_step", failing)
                assert await send(chat(content=MARKER, max_tokens=13)) == 500
                paths = [f"/admin/decisions/{decision.request}" for decision in service.cluster.decisions(10)]
                paths += ["/metrics", "/admin/decisions"]
                shown = [(await whole.ask(service, path)).body for path in paths]
        assert "the cluster failed on Arrived" in caplog.text
        assert MARKER not in caplog.text
        assert MARKER.encode() not in b"".join(shown) + (tmp_path / "log").read_bytes()
        assert len((tmp_path / "log").read_text().splitlines()) >= 5

    run(test())


def _bug(now: int, event: Any) -> None:
    raise RuntimeError("a bug")


#

ADMIN_ROUTES = [
    "/reset_prefix_cache", "/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter", "/flush_cache", "/update_weights", "/update_weights_from_disk", "/abort_request",
    "/metrics", "/docs", "/openapi.json", "/server_info", "/get_server_info", "/start_profile", "/v1/../sleep",
    "/v1/chat/completions/../../sleep", "//sleep", "/%73leep", "/admin/instances",
]  # fmt: skip


def test_x07_engines_admin_routes_are_not_there() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, serving(engine) as served:
            for path in ADMIN_ROUTES:
                for request in (get(path), post(chat(), path), get(path, method="DELETE")):
                    answer = await ask(served.port, request)
                    assert (answer.status, answer.code) == (404, "unknown_path"), path
            assert engine.seen == 0

    run(test())
