"""Model aliases and weighted split, over sockets."""

import json
from collections import Counter

from isochrone.access.aliases import Aliases, Target
from isochrone.access.keys import StoredKey, digest_of
from isochrone.access.tenants import Tenant
from isochrone.config.driver import Access
from tests.support.fake_engine import FakeEngine, json_answer
from tests.support.raw_client import ask, chat, get, post
from tests.support.running import join, run, serving

ALIASES = Aliases({"alias": (Target("m", 3), Target("next", 1)), "away": (Target("gone"),)})
ANSWER = json_answer({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


def test_traffic_is_split_and_only_the_model_changes() -> None:
    async def test() -> None:
        async with FakeEngine() as old, FakeEngine() as new, serving(old, aliases=ALIASES) as served:
            join(served.gateway, new.id, new.url, ("next",), 4096)
            old.script = new.script = ANSWER
            for _ in range(200):
                assert (await ask(served.port, post(chat(model="alias", top_k=1)))).status == 200
            assert 20 < len(new.requests) < 85
            assert {received.body for received in old.requests} == {chat(model="m", top_k=1)}
            assert {received.body for received in new.requests} == {chat(model="next", top_k=1)}
            assert Counter(record.model for record in served.records)["next"] == len(new.requests)
            before = len(new.requests)
            for _ in range(20):
                await ask(served.port, post(chat(model="alias", user="always the same")))
            assert len(new.requests) - before in (0, 20)
            form = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nalias\r\n--B--\r\n'
            audio = post(form, "/v1/audio/transcriptions", content_type="multipart/form-data; boundary=B")
            assert (await ask(served.port, audio)).status == 200
            served.assert_nothing_left()

    run(test())


def test_aliases_are_listed_beside_models() -> None:
    """A-12."""

    async def test() -> None:
        async with FakeEngine() as engine, serving(engine, aliases=ALIASES) as served:
            listed = (await ask(served.port, get("/v1/models"))).json()["data"]
            assert [(card["id"], card["max_model_len"]) for card in listed] == [("alias", 8192), ("m", 8192)]
            assert (await ask(served.port, get("/v1/models/alias"))).json()["id"] == "alias"
            answer = await ask(served.port, post(chat(model="away")))
            assert (answer.status, answer.code) == (404, "model_not_found")
            assert "'away'" in answer.json()["error"]["message"]

    run(test())


def test_who_may_use_an_alias_may_use_what_is_behind_it() -> None:
    async def test() -> None:
        tenants = {"t": Tenant(name="t", models=("alias",))}
        access = Access(keys=True, tenants=tenants)
        async with FakeEngine() as engine, serving(engine, aliases=ALIASES, access=access) as served:
            assert served.gateway.door is not None
            served.gateway.door.ring.update([StoredKey(id="k", digest=digest_of(b"iso-k"), tenant="t", created_s=0)])
            key = "authorization: Bearer iso-k"
            engine.script = ANSWER
            allowed = await ask(served.port, post(chat(model="alias"), "/v1/chat/completions", key))
            assert allowed.status == 200
            assert json.loads(engine.requests[0].body)["model"] == "m"
            refused = await ask(served.port, post(chat(model="m"), "/v1/chat/completions", key))
            assert (refused.status, refused.code) == (403, "model_not_allowed")
            listed = (await ask(served.port, get("/v1/models", key))).json()["data"]
            assert [card["id"] for card in listed] == ["alias"]

    run(test())
