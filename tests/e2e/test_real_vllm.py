"""Two real vLLM engines behind the gateway: the same answers, freed places, and a death that nobody notices."""

import contextlib
import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.calls import Stream, call, connect, eventually, get, metric, post
from tests.support.processes import Up, ready_instances

pytestmark = pytest.mark.vllm

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RUNNING = "vllm:num_requests_running"
OUTPUT_TOKENS = 24
WORDS = "the queue of a cluster waits for price second card block 实例 缓存 кэш запрос why when if not 7 12 , . ?"


def prompts(count: int) -> list[str]:
    """From 10 to some 250 words each, all different, always the same."""
    chance = random.Random(20)
    return [" ".join(chance.choices(WORDS.split(), k=10 + 5 * number)) for number in range(count)]


PROMPTS = prompts(50)


def body(path: str, prompt: str, max_tokens: int = OUTPUT_TOKENS) -> dict[str, Any]:
    """A greedy request."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return {"model": "tiny", "max_tokens": max_tokens, "temperature": 0, **asked}


def ask(url: str, path: str, prompt: str) -> tuple[str, str]:
    """Text and finish reason of a whole answer."""
    answer = post(url, path, body(path, prompt))
    assert answer.status == 200, answer.body
    choice = answer.json()["choices"][0]
    return choice["text"] if path == COMPLETIONS else choice["message"]["content"], choice["finish_reason"]


def ask_streamed(url: str, path: str, prompt: str) -> tuple[str, str]:
    """The same of a streamed answer; and nothing in it that was not asked for."""
    with Stream(url, path, body(path, prompt)) as stream:
        chunks = stream.chunks()
    assert all(chunk["choices"] and not chunk.get("usage") for chunk in chunks), (
        "the usage that we asked for is cut out"
    )
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    texts = [choice["text"] if path == COMPLETIONS else choice["delta"].get("content") or "" for choice in choices]
    return "".join(texts), choices[-1]["finish_reason"]


@pytest.fixture(scope="module")
def direct(pair: Up) -> dict[str, list[tuple[str, str]]]:
    """What an engine says by itself, for both kinds of request."""
    url = pair.engines["engine-1"]
    with ThreadPoolExecutor(16) as threads:
        return {
            path: list(threads.map(lambda prompt, path=path: ask(url, path, prompt), PROMPTS))
            for path in (CHAT, COMPLETIONS)
        }


def test_the_prompts_tell_answers_apart(direct: dict[str, list[tuple[str, str]]]) -> None:
    """Or else the next test would prove nothing."""
    for path, answers in direct.items():
        assert len({text for text, _ in answers}) == len(PROMPTS), path
        assert {reason for _, reason in answers} == {"length"}


@pytest.mark.parametrize("how", [ask, ask_streamed])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_greedy_answers_equal_the_direct_ones(pair: Up, direct: dict[str, Any], path: str, how: Any) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda prompt: how(pair.gateway, path, prompt), PROMPTS))
    assert answers == direct[path]


def test_both_instances_took_part_and_answers_say_so(pair: Up) -> None:
    """After the 200 requests of the test before."""
    taken = {each["id"]: each["dispatched"] for each in get(pair.admin, "/admin/instances").json()["instances"]}
    assert set(taken) == {url.removeprefix("http://") for url in pair.engines.values()}
    assert min(taken.values()) >= 10, taken
    answers = [post(pair.gateway, CHAT, body(CHAT, prompt)) for prompt in PROMPTS[:4]]
    assert {answer.headers["x-isochrone-instance"] for answer in answers} <= set(taken)
    assert {answer.headers["x-isochrone-attempts"] for answer in answers} == {"1"}
    assert len({answer.headers["x-isochrone-request-id"] for answer in answers}) == 4


def test_the_official_client_streams_through(pair: Up, direct: dict[str, Any]) -> None:
    with openai.OpenAI(base_url=f"{pair.gateway}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        chat = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": PROMPTS[3]}],
            max_tokens=OUTPUT_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(chat)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == direct[CHAT][3][0]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == OUTPUT_TOKENS
        completion = client.completions.create(
            model="tiny", prompt=PROMPTS[4], max_tokens=OUTPUT_TOKENS, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in completion) == direct[COMPLETIONS][4][0]
        with pytest.raises(openai.NotFoundError, match="tiny"):
            client.completions.create(model="huge", prompt="x")


def running(pair: Up) -> float:
    return sum(metric(url, RUNNING) for url in pair.engines.values())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_client_that_leaves_a_stream_frees_the_engine(pair: Up, path: str) -> None:
    with Stream(pair.gateway, path, body(path, PROMPTS[0], max_tokens=4000)) as stream:
        events = stream.events()
        for _ in range(3):
            next(events)
        assert running(pair) == 1
    eventually(lambda: running(pair) == 0, within_s=1.0)


def test_a_client_that_leaves_before_its_answer_frees_the_engine(pair: Up) -> None:
    asked = json.dumps(body(CHAT, PROMPTS[0], max_tokens=4000))
    with contextlib.closing(connect(pair.gateway)) as connection:
        connection.request("POST", CHAT, asked, {"Content-Type": "application/json"})
        eventually(lambda: running(pair) == 1, within_s=5.0)
    eventually(lambda: running(pair) == 0, within_s=1.0)


def test_what_the_engine_refuses_comes_back_as_it_said_it(pair: Up) -> None:
    asked = body(CHAT, "short")
    asked["temperature"] = -1
    through, straight = post(pair.gateway, CHAT, asked), post(pair.engines["engine-1"], CHAT, asked)
    assert (through.status, through.body) == (straight.status, straight.body)
    assert through.status == 400


def test_other_paths_pass_through(pair: Up) -> None:
    asked = {"model": "tiny", "prompt": PROMPTS[1]}
    assert post(pair.gateway, "/tokenize", asked).json() == post(pair.engines["engine-2"], "/tokenize", asked).json()
    assert call(pair.gateway, "GET", "/server_info").status == 404


STREAM_TOKENS = 120


def stream(url: str, number: int) -> tuple[str, str, dict[str, int], int]:
    """Text, finish reason and usage of a greedy stream, and the ids that it came under."""
    path = (CHAT, COMPLETIONS)[number % 2]
    asked = body(path, PROMPTS[number], STREAM_TOKENS) | {"stream_options": {"include_usage": True}}
    with Stream(url, path, asked) as streamed:
        chunks = streamed.chunks()
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    texts = [choice["text"] if path == COMPLETIONS else choice["delta"].get("content") or "" for choice in choices]
    usage = {name: chunks[-1]["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return "".join(texts), choices[-1]["finish_reason"], usage, len({chunk["id"] for chunk in chunks})


def tokens_out(pair: Up) -> float:
    return sum(metric(url, "vllm:generation_tokens_total") for url in pair.engines.values())


def test_a_killed_engine_costs_no_request_and_comes_back(pair: Up, direct: dict[str, Any]) -> None:
    """Last in this file. Requests in flight that have no byte of their answer yet, streams in the middle of theirs, and
    the next requests all succeed, with the answers of an engine that lives."""
    output_tokens = 400
    with ThreadPoolExecutor(36) as threads:
        undisturbed = list(threads.map(lambda number: stream(pair.engines["engine-1"], number), range(20)))
        before = tokens_out(pair)
        in_flight = [
            threads.submit(post, pair.gateway, CHAT, body(CHAT, prompt, output_tokens)) for prompt in PROMPTS[:8]
        ]
        streams = [threads.submit(stream, pair.gateway, number) for number in range(20)]
        eventually(lambda: running(pair) >= 20 and tokens_out(pair) - before > 20 * 28, within_s=20)
        victim = max(pair.engines, key=lambda name: metric(pair.engines[name], RUNNING))
        os.kill(pair.pid(victim), signal.SIGKILL)
        after = list(threads.map(lambda prompt: ask(pair.gateway, COMPLETIONS, prompt), PROMPTS[:20]))
        ended = [each.result() for each in in_flight]
        assert [each.result() for each in streams] == undisturbed
    assert metric(pair.admin, "isochrone_streams_resumed_total") >= 5
    assert after == direct[COMPLETIONS][:20]
    assert [answer.status for answer in ended] == [200] * 8
    assert {answer.json()["usage"]["completion_tokens"] for answer in ended} == {output_tokens}
    assert "2" in {answer.headers["x-isochrone-attempts"] for answer in ended}, "the kill must have hit some"

    pair.wait_for(victim, "ready", 2, within_s=150)
    # An instance that failed requests proves itself with one, so there has to be some traffic.
    eventually(lambda: bool(ask(pair.gateway, CHAT, PROMPTS[0])) and ready_instances(pair) == 2, within_s=30)
    assert ask(pair.engines[victim], CHAT, PROMPTS[0]) == direct[CHAT][0]
