"""Bodies are read as a real engine reads them, or refused with a reason."""

import json
from typing import Any

import pytest

from isochrone.emulator.body import IMAGE_TOKENS, Refused, read_chat, read_completion
from isochrone.emulator.tokenizer import TURN_END, TURN_START, decode, encode

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": HELLO, **fields}).encode()


def test_the_chat_template() -> None:
    ask = read_chat(chat(max_tokens=3), "m")
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert decode(ask.prompts[0]) == text
    assert ask.prompts[0].count(TURN_START) == 2


def test_parts_of_text_and_one_image() -> None:
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}
    parts = [{"type": "text", "text": "what is"}, url, {"type": "text", "text": " this"}]
    with_image = read_chat(json.dumps({"messages": [{"role": "user", "content": parts}]}).encode(), "m").prompts[0]
    without = read_chat(json.dumps({"messages": [{"role": "user", "content": "what is this"}]}).encode(), "m").prompts[
        0
    ]
    assert len(with_image) == len(without) + IMAGE_TOKENS
    assert decode(with_image) == decode(without)


def test_tools_come_first() -> None:
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    prompt = decode(read_chat(chat(tools=tools), "m").prompts[0])
    assert prompt.index("look_up") < prompt.index("hello")


def test_a_final_message_that_goes_on_is_not_closed() -> None:
    messages = [*HELLO, {"role": "assistant", "content": " one two"}]
    body = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    prompt = read_chat(json.dumps(body).encode(), "m").prompts[0]
    assert prompt[-2:] == encode(" one two")
    assert prompt.count(TURN_END) == 1


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("abc", [encode("abc")]),
        (["abc", "de"], [encode("abc"), encode("de")]),
        ([20, 21], [[20, 21]]),
        ([[20], [21, 22]], [[20], [21, 22]]),
    ],
)
def test_all_forms_of_a_prompt(prompt: object, expected: list[list[int]]) -> None:
    assert read_completion(json.dumps({"prompt": prompt}).encode(), "m").prompts == expected


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], [[], [1]], [-1], [2**31], ["a", [2**40]], [1, "a"], [[1.5]], [None]]
)
def test_a_prompt_that_is_none_is_refused(prompt: object) -> None:
    with pytest.raises(Refused) as refusal:
        read_completion(json.dumps({"prompt": prompt}).encode(), "m")
    assert refusal.value.status == 400


def test_limits_of_length_and_defaults() -> None:
    assert read_completion(b'{"prompt":"a"}', "m").max_tokens == 16
    assert read_chat(chat(), "m").max_tokens is None
    assert read_chat(chat(max_tokens=3, max_completion_tokens=4), "m").max_tokens == 4
    ask = read_chat(chat(stop=None, n=None, min_tokens=None, stream_options=None, logprobs=False, temperature=0.5), "m")
    assert (ask.n, ask.min_tokens, ask.stream) == (1, 0, False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["x"]}, "stop"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages"),
    ],
)
def test_what_the_emulator_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_chat(chat(**fields), "m")
    assert (refusal.value.status, refusal.value.param) == (400, param)
    assert json.loads(refusal.value.body())["error"]["code"] == 400


def test_another_model_is_not_found() -> None:
    with pytest.raises(Refused, match="serves 'm'") as refusal:
        read_chat(chat(model="other"), "m")
    assert refusal.value.status == 404


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"messages": 3}', b'{"messages": [{}]}', b'{"prompt": {}}', b"\xff"]
)
def test_a_body_that_is_none_is_refused(raw: bytes) -> None:
    for read in (read_chat, read_completion):
        with pytest.raises(Refused) as refusal:
            read(raw, "m")
        assert refusal.value.status == 400
