"""What a body promises for the resuming of its stream."""

import json
from typing import Any

import pytest

from isochrone.access.contract import PARAMS_BYTES_MAX, Contract, Promise, contract_of
from isochrone.access.paths import Kind, Route
from isochrone.access.scan import scan

CHAT = Route("/v1/chat/completions", Kind.CHAT)
COMPLETIONS = Route("/v1/completions", Kind.COMPLETIONS)


def contract(route: Route = CHAT, **fields: Any) -> Contract:
    body: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 2000}]}
    if route is COMPLETIONS:
        body["prompt"] = body.pop("messages")[0]["content"]
    raw = json.dumps({**body, **fields}).encode()
    return contract_of(route, scan(route, raw))


@pytest.mark.parametrize(
    ("fields", "promise"),
    [
        ({"temperature": 0}, Promise.EXACT),
        ({"temperature": 0.0, "seed": 3}, Promise.EXACT),
        ({}, Promise.FRESH),
        ({"temperature": 0.5}, Promise.FRESH),
        ({"temperature": 1, "seed": 3}, Promise.FRESH),
        ({"temperature": None}, Promise.FRESH),
    ],
)
def test_the_promise(fields: dict[str, Any], promise: Promise) -> None:
    assert contract(**fields).promise is promise


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0, "logprobs": None},
        {"user": "u", "metadata": {"a": "b"}, "chat_template_kwargs": {"x": 1}, "echo": False, "bad_words": []},
    ],
)
def test_values_that_change_nothing(fields: dict[str, Any]) -> None:
    assert contract(**fields).why == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"logprobs": 0},
        {"prompt_logprobs": 1},
        {"echo": True},
        {"tools": [{"type": "function", "function": {"name": "f", "description": "long " * 100}}]},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_schema"}},
        {"structured_outputs": {"regex": "a"}},
        {"guided_choice": ["a"]},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -1},
        {"repetition_penalty": 1.1},
        {"min_tokens": 1},
        {"use_beam_search": True},
        {"bad_words": ["a b"]},
        {"return_token_ids": True},
        {"return_token_ids": False},
        {"stream_options": {"continuous_usage_stats": True, "include_usage": True}},
        {"stop": [1]},
        {"frobnicate": "yes"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        {"logit_bias": {str(n): 1 for n in range(PARAMS_BYTES_MAX)}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_is_refused(fields: dict[str, Any]) -> None:
    made = contract(**fields)
    assert made.promise is Promise.REFUSED
    assert made.why


def test_other_dialects_are_refused() -> None:
    for kind in (Kind.RESPONSES, Kind.MESSAGES):
        assert contract(Route("/x", kind)).promise is Promise.REFUSED


def test_no_bound_on_completions_is_refused() -> None:
    """vLLM 0.32 reads null as 16, earlier ones as no bound."""
    assert contract(COMPLETIONS, max_tokens=None).promise is Promise.REFUSED
    assert contract(CHAT, max_tokens=None).promise is Promise.FRESH


def test_several_prompts_are_refused() -> None:
    assert contract(COMPLETIONS, prompt=["a", "b"]).promise is Promise.REFUSED
    assert contract(COMPLETIONS, prompt=[1, 2]).promise is Promise.FRESH


@pytest.mark.parametrize(
    ("route", "fields", "bound"),
    [
        (CHAT, {}, None),
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, 6),
        (COMPLETIONS, {}, 16),
        (COMPLETIONS, {"max_tokens": 7}, 7),
    ],
)
def test_the_bound_on_tokens(route: Route, fields: dict[str, Any], bound: int | None) -> None:
    assert contract(route, **fields).max_tokens == bound


def test_what_is_carried_over_keeps_its_text() -> None:
    raw = b'{"model":"m","messages":[],"stream":true,"temperature":1e-7,"top_p":0.10,"seed":9223372036854775809}'
    made = contract_of(CHAT, scan(CHAT, raw))
    assert made.params == b'"model":"m","temperature":1e-7,"top_p":0.10,"seed":9223372036854775809'


@pytest.mark.parametrize(
    ("fields", "stop", "held"),
    [
        ({"stop": "ab"}, ("ab",), 1),
        ({"stop": ["a", "漢字漢"]}, ("a", "漢字漢"), 2),
        ({"stop": None}, (), 0),
        ({"stop": []}, (), 0),
        ({"stop": "abc", "include_stop_str_in_output": True}, ("abc",), 0),
    ],
)
def test_stop_strings(fields: dict[str, Any], stop: tuple[str, ...], held: int) -> None:
    made = contract(**fields)
    assert (made.stop, made.held_chars) == (stop, held)
