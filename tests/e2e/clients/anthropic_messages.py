"""Anthropic's client against the URL in the first argument; run by the Python of vLLM, which has it. Prints JSON."""

import json
import sys

import anthropic

MESSAGES = [{"role": "user", "content": "hello"}]
ASKED = {"model": "tiny", "max_tokens": 12, "messages": MESSAGES, "extra_body": {"temperature": 0}}
"""The client has no argument for the temperature any more; the API has."""


def main(url: str) -> None:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        whole = client.messages.create(**ASKED)
        with client.messages.stream(**ASKED) as stream:
            streamed = "".join(stream.text_stream)
            last = stream.get_final_message()
        counted = client.messages.count_tokens(model="tiny", messages=MESSAGES)
        errors = {}
        for name, changes in (("model", {"model": "huge"}), ("path", {"messages": 7})):
            try:
                client.messages.create(**{**ASKED, **changes})
            except anthropic.APIStatusError as error:
                errors[name] = [type(error).__name__, error.status_code]
    print(json.dumps({
        "whole": whole.content[0].text, "streamed": streamed, "tokens": last.usage.output_tokens,
        "stop_reason": last.stop_reason, "prompt_tokens": counted.input_tokens,
        "usage": [whole.usage.input_tokens, whole.usage.output_tokens], "errors": errors,
    }))  # fmt: skip


main(sys.argv[1])
