"""Reported cases of the API: A-03, A-05, A-07, A-08, A-10, A-12, A-16."""

import asyncio
import json
import time

import pytest

from isochrone.access.keys import StoredKey, digest_of
from isochrone.access.paths import PASSED_ON
from isochrone.access.tenants import Tenant
from isochrone.config.driver import Access, RelayLimits
from isochrone.nouns.events import Probed, Verdict
from isochrone.nouns.settings import Settings
from tests.support import service as whole
from tests.support.fake_engine import END, FakeEngine, Wire, chunk, json_answer
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.running import join, quick, run, serving

ANSWER = json_answer({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


async def never(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


@pytest.mark.parametrize("status", [200, 422])
def test_a03_paths_beside_chat_are_forwarded(status: int) -> None:
    """To an instance of the model, body and status unchanged."""

    async def test() -> None:
        async with FakeEngine() as engine, FakeEngine() as other, serving(engine) as served:
            join(served.gateway, other.id, other.url, ("n",))
            said = {"object": "list", "data": [{"score": 0.5}]}
            engine.script = json_answer(said, status)
            body = b'{ "model":"m", "input": ["a"], "documents":["b"], "top_n": 1e0 }'
            for path in PASSED_ON:
                answer = await ask(served.port, post(body, path))
                assert (answer.status, answer.json()) == (status, said), path
                assert (engine.requests[-1].target, engine.requests[-1].body) == (path, body)
            assert other.requests == []
            missing = await ask(served.port, post(body, "/v1/unheard-of"))
            assert (missing.status, missing.code) == (404, "unknown_path")
            assert "/v1/unheard-of" in missing.json()["error"]["message"]

    run(test())


@pytest.mark.parametrize("size", [32_769, 2_100_000, 12_000_000])
def test_a05_images_pass_by_default(size: int) -> None:
    async def test() -> None:
        async with FakeEngine() as engine, serving(engine, limits=RelayLimits(), longest=None) as served:
            part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}
            body = chat(messages=[{"role": "user", "content": [part]}])
            assert (await ask(served.port, post(body))).status == 200
            assert engine.requests[0].body == body

    run(test())


MALFORMED = {
    "empty": b"",
    "cut": b'{"model":"m","messages":[{"role":"user"',
    "array": b'[{"model":"m"}]',
    "model is a number": b'{"model":5,"messages":[]}',
    "no model": b'{"messages":[]}',
    "not UTF-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "NaN": b'{"model":"m","messages":[],"temperature":NaN}',
    "deep arrays": b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"model":"m","x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "deep messages": b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("how", MALFORMED)
def test_a07_a_malformed_body_is_the_clients_mistake(how: str) -> None:
    async def test() -> None:
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            for _ in range(2):
                began = time.perf_counter()
                client.send(post(MALFORMED[how]))
                answer = await client.answer()
                assert time.perf_counter() - began < 1.0  # some milliseconds; the rest is for a busy machine
                assert answer.status == 400
                assert answer.code
                assert b"Traceback" not in answer.body
                assert len(answer.body) < 1000
            assert engine.seen == 0
            assert served.gateway.brain.faults == 0

    run(test())


def test_a08_our_own_refusals_say_when_to_come_back() -> None:
    """All instances out of rotation; then the queue full."""

    async def test() -> None:
        async with FakeEngine() as one, FakeEngine() as two:
            settings = Settings(policy="equal-cost", samples_warm=0, hold_chunks=0.1, queue_requests_max=3)
            async with serving(one, two, settings=settings, longest=None) as served:
                one.script = two.script = never
                bodies = [post(chat(content=f"number {number}" + " x" * 5000)) for number in range(12)]
                asking = [asyncio.ensure_future(ask(served.port, body)) for body in bodies]
                done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    assert task.result().code == "queue_full"
                    assert int(task.result().headers["retry-after"]) >= 1
                for task in asking:
                    task.cancel()
                await served.until_idle()
                for engine in (one, two):
                    for _ in range(settings.heartbeat_eject_misses):
                        served.gateway.submit(Probed(engine.id, Verdict.REFUSED))
                answer = await ask(served.port, post(chat()))
                assert (answer.status, answer.code) == (503, "no_instance_ready")
                assert int(answer.headers["retry-after"]) >= 1

    run(test())


def test_a08_a_retry_that_succeeds_leaves_no_trace() -> None:
    async def test() -> None:
        async with FakeEngine() as full, FakeEngine() as free, serving(full, free) as served:
            full.script = json_answer({"error": {"message": "full"}}, 503, "retry-after: 30")
            free.script = ANSWER
            for _ in range(2):
                answer = await ask(served.port, post(chat()))
                assert answer.status == 200
                assert "retry-after" not in answer.headers
            assert full.requests

    run(test())


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("keyed", [False, True])
def test_a10_a_client_that_waits_for_100_is_not_left_waiting(framing: str, keyed: bool) -> None:
    """200 KB, as curl sends it; with keys on and none shown a final answer comes instead, and no 100."""
    body = chat(content="x" * 200_000)
    line = f"Content-Length: {len(body)}" if framing == "length" else "Transfer-Encoding: chunked"
    request_head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n{line}\r\nExpect: 100-continue\r\n\r\n".encode()

    async def test() -> None:
        access = Access(keys=keyed)
        async with (
            FakeEngine() as engine,
            serving(engine, access=access, longest=None, limits=quick(body_s_max=5.0)) as served,
            RawClient(served.port) as client,
        ):
            client.send(request_head)
            answer = await client.answer()
            if keyed:
                assert (answer.status, answer.code) == (401, "missing_api_key")
                return
            assert answer.status == 100
            client.send(body if framing == "length" else chunk(body) + END)
            assert (await client.answer()).status == 200
            assert engine.requests[0].body == body
            assert "expect" not in engine.requests[0].headers

    run(test())


def test_a12_the_list_of_models_asks_nobody() -> None:
    """Three instances, two models; one refuses connections, one never answers."""

    async def test() -> None:
        async with FakeEngine(("org/a", "b")) as well, FakeEngine(("org/a",)) as dead, FakeEngine(("b",)) as hung:
            hung.scripts["/v1/models"] = never
            dead.refuse()
            async with whole.serving(dead, hung, well) as service:
                while len(service.cluster.models()) < 2:
                    await asyncio.sleep(0.002)
                well.scripts["/v1/models"] = never
                listed = await ask(service.port, get("/v1/models"))
                assert [card["id"] for card in listed.json()["data"]] == ["b", "org/a"]
                for path in ("/v1/models/org/a", "/v1/models/org%2Fa"):
                    assert (await ask(service.port, get(path))).json()["id"] == "org/a"
                missing = await ask(service.port, get("/v1/models/c"))
                assert (missing.status, missing.code) == (404, "model_not_found")

    run(test())


def _refusals() -> dict[str, tuple[int, bytes]]:
    """Name -> status, request."""
    key = "authorization: Bearer iso-k"
    big = post(chat()).replace(b"Content-Length: ", b"Content-Length: 99999999999")
    return {
        "400": (400, post(b"{", "/v1/chat/completions", key)),
        "401": (401, post(chat())),
        "404 path": (404, post(chat(), "/v1/none", key)),
        "404 model": (404, post(chat(model="none"), "/v1/chat/completions", key)),
        "405": (405, get("/v1/chat/completions", key)),
        "408": (408, post(chat())[:-5].replace(b"Content-Type", f"{key}\r\nContent-Type".encode())),
        "413": (413, big),
        "415": (415, post(b"a=b", "/v1/chat/completions", key, content_type="text/plain")),
        "429": (429, post(chat(model="m500"), "/v1/chat/completions", "authorization: Bearer iso-none-left")),
        "431": (431, get("/v1/models", *(f"x-{number}: 1" for number in range(200)))),
        "500": (500, post(chat(model="m500"), "/v1/chat/completions", key)),
        "502": (502, post(chat(model="m502"), "/v1/chat/completions", key)),
        "502 stream": (502, post(chat(stream=True, model="m502"), "/v1/chat/completions", key)),
        "503": (503, post(chat(model="m503"), "/v1/chat/completions", key)),
        "503 stream": (503, post(chat(stream=True, model="m503"), "/v1/chat/completions", key)),
        "504": (504, post(chat(model="m504"), "/v1/chat/completions", key)),
        "504 stream": (504, post(chat(stream=True, model="m504"), "/v1/chat/completions", key)),
    }


@pytest.mark.parametrize("refusal", _refusals())
def test_a16_every_refusal_has_one_shape(refusal: str) -> None:
    """JSON with message, type, param and code; the status as told; an id in a header; what to do in words."""
    status, request = _refusals()[refusal]
    tenants = {"none-left": Tenant(name="none-left", requests_per_minute=1)}
    settings = Settings(policy="round-robin", first_token_s=0.05, whole_s=0.1, attempts_max=1)

    async def test() -> None:
        async with FakeEngine() as hung, FakeEngine() as dead, FakeEngine() as broken:  # noqa: SIM117  # fits no line
            async with serving(access=Access(keys=True, tenants=tenants), settings=settings) as served:
                door = served.gateway.door
                assert door is not None
                for name, tenant in (("iso-k", "acme"), ("iso-none-left", "none-left")):
                    door.ring.update([StoredKey(id=name, digest=digest_of(name.encode()), tenant=tenant, created_s=0)])
                for engine, model in ((hung, "m504"), (dead, "m502"), (broken, "m500"), (FakeEngine(), "m503")):
                    join(served.gateway, model, f"http://127.0.0.1:{engine.port or 9}", (model,))
                hung.script = never
                dead.refuse()
                own = {"error": {"message": "own", "type": "x", "param": None, "code": 500, "more": 1}}
                broken.script = json_answer(own, 500)
                for _ in range(settings.heartbeat_eject_misses):
                    served.gateway.submit(Probed("m503", Verdict.REFUSED))
                if status == 429:
                    await ask(served.port, request)
                answer = await ask(served.port, request)
                assert answer.status == status
                assert answer.headers["content-type"] == "application/json"
                assert answer.headers["x-isochrone-request-id"]
                error = json.loads(answer.body)["error"]
                if status == 500:
                    assert answer.json() == own, "an engine's own error passes as it is"
                else:
                    assert set(error) == {"message", "type", "param", "code"}
                    assert len(error["message"]) > 20
                if status in (429, 503):
                    assert int(answer.headers["retry-after"]) >= 1

    run(test())
