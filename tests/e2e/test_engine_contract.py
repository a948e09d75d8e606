"""What the gateway relies on in an engine, asked of a real vLLM and of the emulated one, which earns its trust here."""

from typing import Any

import pytest

from isochrone.adapters.engine import detect, models
from isochrone.nouns.instance import Snapshot
from tests.e2e.conftest import Engine
from tests.support.calls import Stream, eventually, get, post

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "The queue of the cluster is long, and each request wants its answer at the same time as the others. " * 8


def body(engine: Engine, path: str, prompt: str = PROMPT, **more: Any) -> dict[str, Any]:
    """A greedy request for 12 tokens, of the kind that `path` takes."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return {"model": engine.model, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **asked, **more}


def text_of(choice: Any) -> str:
    """Output text of a choice: of a message, of a streamed delta, or of a completion."""
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("delta") or choice.get("message"))["content"] or "")


def snapshot(engine: Engine) -> Snapshot:
    return detect.decode(get(engine.url, "/metrics").body)


def test_models_health_version(engine: Engine) -> None:
    (card,) = models.decode(get(engine.url, "/v1/models").body)
    assert card.name == engine.model
    assert card.max_model_len is not None
    assert get(engine.url, "/health").status == 200
    assert get(engine.url, "/version").json()["version"]


def test_metrics_have_all_that_the_adapter_reads(engine: Engine) -> None:
    post(engine.url, COMPLETIONS, body(engine, COMPLETIONS))
    seen = snapshot(engine)
    assert seen.engine == "vllm"
    assert seen.missing == ()
    assert (seen.running, seen.waiting) == (0, 0)
    assert seen.kv_usage_ratio is not None
    assert 0 <= seen.kv_usage_ratio <= 1
    assert seen.kv_capacity_tokens
    assert seen.block_tokens
    assert seen.started_at_unix_s


def test_counters_count_tokens(engine: Engine) -> None:
    before = snapshot(engine)
    usage = post(engine.url, COMPLETIONS, body(engine, COMPLETIONS)).json()["usage"]
    after = snapshot(engine)
    assert after.prompt_tokens is not None
    assert before.prompt_tokens is not None
    assert after.prompt_tokens - before.prompt_tokens == usage["prompt_tokens"]
    assert after.generation_tokens is not None
    assert before.generation_tokens is not None
    assert after.generation_tokens - before.generation_tokens == usage["completion_tokens"] == 12


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_streamed_and_whole_answers_agree(engine: Engine, path: str) -> None:
    whole = post(engine.url, path, body(engine, path)).json()
    with Stream(engine.url, path, body(engine, path)) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        chunks = stream.chunks()
    assert "".join(text_of(choice) for chunk in chunks for choice in chunk["choices"]) == text_of(whole["choices"][0])
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "length"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert not any(chunk.get("usage") for chunk in chunks), "usage comes only where it was asked for"
    if path == CHAT:
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_and_token_ids(engine: Engine, path: str) -> None:
    asked = body(engine, path, return_token_ids=True)
    whole = post(engine.url, path, asked).json()
    usage, choice = whole["usage"], whole["choices"][0]
    prompt_ids = whole["prompt_token_ids"] if path == CHAT else choice["prompt_token_ids"]
    assert len(prompt_ids) == usage["prompt_tokens"]
    assert len(choice["token_ids"]) == usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12

    with Stream(engine.url, path, {**asked, "stream_options": {"include_usage": True}}) as stream:
        chunks = stream.chunks()
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    streamed = [number for chunk in chunks for choice in chunk["choices"] for number in choice.get("token_ids") or []]
    assert streamed == choice["token_ids"]
    first = chunks[0] if path == CHAT else chunks[0]["choices"][0]
    assert first["prompt_token_ids"] == prompt_ids


def test_a_continuation_by_token_ids_gives_the_same_rest(engine: Engine) -> None:
    whole = post(engine.url, COMPLETIONS, body(engine, COMPLETIONS, return_token_ids=True)).json()["choices"][0]
    prompt, output = whole["prompt_token_ids"], whole["token_ids"]
    asked = {**body(engine, COMPLETIONS, return_token_ids=True), "prompt": prompt + output[:5], "max_tokens": 7}
    rest = post(engine.url, COMPLETIONS, asked).json()["choices"][0]
    assert rest["token_ids"] == output[5:]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_tokenize_takes_a_whole_request_and_gives_its_prompts_ids(engine: Engine, path: str) -> None:
    """What a stream that goes on elsewhere falls back on where it has not kept the ids."""
    asked = body(engine, path)
    whole = post(engine.url, path, {**asked, "return_token_ids": True}).json()
    ids = whole["prompt_token_ids"] if path == CHAT else whole["choices"][0]["prompt_token_ids"]
    streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    assert post(engine.url, "/tokenize", streamed).json()["tokens"] == ids


def test_no_bound_on_completions_is_sixteen_tokens(engine: Engine) -> None:
    """So that a chat without a bound cannot be continued with null: the room in the context has to be named."""
    answer = post(engine.url, COMPLETIONS, body(engine, COMPLETIONS, max_tokens=None)).json()
    assert answer["usage"]["completion_tokens"] == 16


def test_a_prompt_sent_again_is_found_in_the_prefix_cache(engine: Engine) -> None:
    asked = body(engine, COMPLETIONS, prompt="Once more, with feeling: " + PROMPT)
    block_tokens = snapshot(engine).block_tokens
    assert block_tokens
    first = post(engine.url, COMPLETIONS, asked).json()["usage"]
    again = post(engine.url, COMPLETIONS, asked).json()["usage"]
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert first["prompt_tokens_details"]["cached_tokens"] < cached < again["prompt_tokens"]
    assert cached == (again["prompt_tokens"] - 1) // block_tokens * block_tokens


def test_tokenize_and_back(engine: Engine) -> None:
    ids = post(engine.url, "/tokenize", {"model": engine.model, "prompt": PROMPT}).json()["tokens"]
    assert post(engine.url, "/detokenize", {"model": engine.model, "tokens": ids}).json()["prompt"] == PROMPT


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_an_engine_refuses(engine: Engine, path: str) -> None:
    (card,) = models.decode(get(engine.url, "/v1/models").body)
    assert card.max_model_len
    too_long = post(engine.url, path, body(engine, path, prompt="word " * card.max_model_len * 2))
    assert too_long.status == 400
    assert too_long.json()["error"]["message"]
    unknown = post(engine.url, path, {**body(engine, path), "model": "no-such-model"})
    assert unknown.status == 404
    assert unknown.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_client_that_leaves_frees_its_place(engine: Engine, path: str) -> None:
    with Stream(engine.url, path, body(engine, path, max_tokens=4000)) as stream:
        events = stream.events()
        for _ in range(3):
            next(events)
        assert snapshot(engine).running == 1
    eventually(lambda: snapshot(engine).running == 0, within_s=1.0)
