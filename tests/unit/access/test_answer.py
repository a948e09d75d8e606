"""Usage out of whole answers."""

import json

import pytest

from isochrone.access.answer import SEARCH_BYTES, usage_of
from isochrone.nouns.request import Usage

CHAT = {
    "id": "chatcmpl-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "\"usage\":{"}, "finish_reason": "length"}],
    "usage": {
        "prompt_tokens": 7, "total_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
    "prompt_logprobs": None,
}  # fmt: skip


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " :\n ")])
def test_chat(separators: tuple[str, str]) -> None:
    body = json.dumps(CHAT, separators=separators).encode()
    assert usage_of(body) == Usage(7, 5, 4, "length")


def test_missing_details_stay_unknown() -> None:
    body = b'{"choices":[{"text":"x","finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":3}}'
    assert usage_of(body) == Usage(3, None, None, "stop")
    assert usage_of(b'{"usage":{"prompt_tokens":3,"prompt_tokens_details":null}}') == Usage(3, None, None, None)


def test_responses() -> None:
    body = b"""{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[],"usage":
        {"input_tokens":9,"input_tokens_details":{"cached_tokens":8},"output_tokens":2,
         "output_tokens_details":{"reasoning_tokens":0},"total_tokens":11},"user":null}"""
    assert usage_of(body) == Usage(9, 2, 8, "length")


def test_messages_count_cached_input_apart() -> None:
    """Anthropic's definition: all input = input_tokens + cache_read + cache_creation."""
    body = b"""{"type":"message","stop_reason":"end_turn","usage":{"input_tokens":10,"output_tokens":3,
        "cache_read_input_tokens":32,"cache_creation_input_tokens":5}}"""
    assert usage_of(body) == Usage(47, 3, 32, "stop")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"not json", b'{"usage":null}', b'{"usage":5}', b'{"usage":', b'{"usage":{',
        b'{"usage":{"prompt_tokens":"x"}}',
        b'{"usage":{"prompt_tokens":1', b'{"usage":{' + b'"x":{' * 2000, b'"usage"',
    ],
)  # fmt: skip
def test_what_is_not_there_is_none(body: bytes) -> None:
    assert usage_of(body) is None


def test_it_is_found_at_either_end_of_a_long_answer() -> None:
    long = b'"data":"' + b"x" * (2 * SEARCH_BYTES) + b'"'
    assert usage_of(b'{"usage":{"prompt_tokens":1},' + long + b"}") == Usage(1)
    assert usage_of(b"{" + long + b',"usage":{"prompt_tokens":1}}') == Usage(1)
