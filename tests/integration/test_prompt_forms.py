"""A-02: every form of a prompt reaches an instance under every policy, and equal token prefixes meet in one place."""

import base64
import json
from typing import Any

import pytest

from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from tests.support.fake_engine import FakeEngine, json_answer
from tests.support.raw_client import ask, post
from tests.support.running import run, serving

ANSWER = {"choices": [{"text": "ok", "finish_reason": "stop"}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
IMAGE = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 15_000).decode()
"""5 MB of base64."""
PROMPTS: dict[str, Any] = {
    "text": "Hello",
    "texts": ["Hello", "there"],
    "ids": [1, 2, 3],
    "lists of ids": [[1, 2, 3], [4, 5]],
    "empty text": "",
    "empty list": [],
}
MESSAGES: dict[str, Any] = {
    "text": [{"role": "user", "content": "Hello"}],
    "image": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": IMAGE}},
            ],
        }
    ],
    "no content but a tool call": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ],
    "no messages": [],
}


@pytest.mark.parametrize("policy", policies.names())
def test_a02_every_form_of_a_prompt_reaches_an_instance(policy: str) -> None:
    async def test() -> None:
        async with FakeEngine() as one, FakeEngine() as two:
            one.script = two.script = json_answer(ANSWER)
            async with serving(one, two, settings=Settings(policy=policy)) as served:
                for path, field, forms in (
                    ("/v1/completions", "prompt", PROMPTS),
                    ("/v1/chat/completions", "messages", MESSAGES),
                ):
                    for name, value in forms.items():
                        body = json.dumps({"model": "m", field: value}).encode()
                        answer = await ask(served.port, post(body, path))
                        assert answer.status == 200, (path, name, answer.body)
                bodies = [received.body for engine in (one, two) for received in engine.requests]
                assert len(bodies) == len(PROMPTS) + len(MESSAGES)
                await served.until_idle()
                served.assert_nothing_left()

    run(test())


def test_a02_requests_with_the_same_token_prefix_meet() -> None:
    """Eight groups of long prompts as ids: each group's second prompt goes where its first one is cached."""

    async def test() -> None:
        async with FakeEngine() as one, FakeEngine() as two, FakeEngine() as three:
            one.script = two.script = three.script = json_answer(ANSWER)
            async with serving(one, two, three, settings=Settings(policy="equal-cost")) as served:
                for group in range(8):
                    ids = [1000 * group + number % 997 for number in range(2000)]
                    places = []
                    for tail in ([7], [8, 9], [10]):
                        body = json.dumps({"model": "m", "prompt": ids + tail}).encode()
                        answer = await ask(served.port, post(body, "/v1/completions"))
                        places.append(answer.headers["x-isochrone-instance"])
                    assert len(set(places)) == 1, (group, places)

    run(test())
