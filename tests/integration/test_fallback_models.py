"""Fallback models of an alias, over sockets."""

import json

from isochrone.access.aliases import Aliases, Target
from isochrone.nouns.settings import Settings
from tests.support.fake_engine import FakeEngine, delta, json_answer, sse_answer
from tests.support.raw_client import ask, chat, post
from tests.support.running import join, run, serving

ALIASES = Aliases({
    "chat": (Target("m"), Target("small", fallback=True)),
    "away": (Target("gone"), Target("small", fallback=True)),
})  # fmt: skip
SETTINGS = Settings(policy="round-robin", retry_tokens_max=1e9)
GOOD = sse_answer([delta("one"), b"data: [DONE]\n\n"])


def test_a_model_that_fails_is_replaced_by_the_fallback_before_the_first_byte_and_the_client_is_told():
    async def test():
        async with FakeEngine() as big, FakeEngine() as little, serving(
            big, aliases=ALIASES, settings=SETTINGS
        ) as served:  # fmt: skip
            join(served.gateway, little.id, little.url, ("small",), 4096)
            big.script = json_answer({"error": {"message": "broken"}}, 500)
            little.script = GOOD
            answer = await ask(served.port, post(chat(model="chat", stream=True, top_k=1)))
            assert answer.status == 200
            assert answer.body == delta("one") + b"data: [DONE]\n\n"
            assert answer.headers["x-isochrone-fallback"] == "small"
            assert answer.headers["x-isochrone-attempts"] == "2"
            assert json.loads(big.requests[0].body)["model"] == "m"
            assert json.loads(little.requests[0].body) == json.loads(big.requests[0].body) | {"model": "small"}
            assert (served.records[-1].model, served.records[-1].fallback_from) == ("small", "m")
            served.assert_nothing_left()

    run(test())


def test_a_model_that_nobody_serves_is_replaced_at_once():
    async def test():
        async with FakeEngine() as big, FakeEngine() as little, serving(
            big, aliases=ALIASES, settings=SETTINGS
        ) as served:  # fmt: skip
            join(served.gateway, little.id, little.url, ("small",), 4096)
            little.script = json_answer({"choices": []})
            answer = await ask(served.port, post(chat(model="away")))
            assert (answer.status, answer.headers["x-isochrone-fallback"]) == (200, "small")
            assert json.loads(little.requests[0].body)["model"] == "small"
            assert (served.records[-1].model, served.records[-1].fallback_from) == ("small", "gone")
            big.script = json_answer({"choices": []})
            usual = await ask(served.port, post(chat(model="chat")))
            assert "x-isochrone-fallback" not in usual.headers
            served.assert_nothing_left()

    run(test())


def test_where_the_fallback_fails_too_the_client_has_its_answer_and_nothing_is_asked_twice():
    async def test():
        async with FakeEngine() as big, FakeEngine() as little, serving(
            big, aliases=ALIASES, settings=SETTINGS
        ) as served:  # fmt: skip
            join(served.gateway, little.id, little.url, ("small",), 4096)
            big.script = json_answer({"error": {"message": "broken"}}, 500)
            little.script = json_answer({"error": {"message": "broken too"}}, 500)
            answer = await ask(served.port, post(chat(model="chat")))
            assert (answer.status, answer.json()["error"]["message"]) == (500, "broken too")
            assert (len(big.requests), len(little.requests)) == (1, 1)
            served.assert_nothing_left()

    run(test())


def test_the_clients_own_mistake_is_no_reason():
    async def test():
        async with FakeEngine() as big, FakeEngine() as little, serving(
            big, aliases=ALIASES, settings=SETTINGS
        ) as served:  # fmt: skip
            join(served.gateway, little.id, little.url, ("small",), 4096)
            big.script = json_answer({"error": {"message": "no"}}, 400)
            assert (await ask(served.port, post(chat(model="chat")))).status == 400
            assert not little.requests

    run(test())
