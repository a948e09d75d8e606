"""An engine of one page that streams like vLLM: the same event forms, detokenizer, hold-back and stop strings.

A token is a byte, so a character of two to four bytes takes several tokens and its text is held back until it is
whole. The next character is a function of all tokens before it, so any continuation can be checked.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import xxhash

ALPHABET = ["a", "b", "a", "b", " ", "é", "漢", "😀", '"', "\\", "\n", "},"]
CONTEXT_TOKENS = 300
"""Longest prompt with its answer; a chat without a bound goes on to its end."""


def prompt_ids(body: dict[str, Any]) -> list[int]:
    """Ids as they are, text as bytes; of a chat the contents, each behind a byte that no text has."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return prompt
    text = prompt if prompt is not None else "".join("\0" + message["content"] for message in body["messages"])
    return list(str(text).encode())


def tokens(ids: list[int]) -> Iterator[int]:
    """What follows, for ever."""
    ids = list(ids)
    while True:
        start = len(ids)
        while start and 0x80 <= ids[start - 1] < 0xC0:
            start -= 1
        lead = ids[start - 1] if start else 0
        size = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
        begun = len(ids) - start + 1
        if size == 1 or begun == size:  # the last character is whole: a new one
            start, begun = len(ids) + 1, 0
        value = xxhash.xxh64_intdigest(bytes(ids[: start - 1]))
        ids.append(ALPHABET[value % len(ALPHABET)].encode()[:4][begun])
        yield ids[-1]


class Detokenizer:
    """Text of tokens as they come, less what stop strings hold back."""

    def __init__(self, stops: list[str]) -> None:
        self.stops = stops
        self.held = max((len(stop) - 1 for stop in stops), default=0)
        self.text = ""
        self.sent = 0
        self._bytes = b""

    def push(self, token: int) -> str | None:
        """The stop string that is complete now, if any."""
        self._bytes += bytes([token])
        try:
            self.text += self._bytes.decode()
        except UnicodeDecodeError:
            return None
        self._bytes = b""
        for stop in self.stops:
            if self.text.endswith(stop):
                self.text = self.text[: -len(stop)]
                return stop
        return None

    def take(self, finished: bool) -> str:
        """New text to send."""
        end = len(self.text) - (0 if finished else self.held)
        new = self.text[self.sent : end] if end > self.sent else ""
        self.sent = max(self.sent, end)
        return new


def stream(body: dict[str, Any], chat: bool, sizes: Iterable[int] = (), id: str = "1") -> list[bytes]:
    """All events of the answer. `sizes`: tokens of the first events, those after have one."""
    prompt = prompt_ids(body)
    shows = bool(body.get("return_token_ids"))
    stop = body.get("stop") or []
    words = Detokenizer([stop] if isinstance(stop, str) else stop)
    kind = "chat.completion.chunk" if chat else "text_completion"
    envelope = {"id": id, "object": kind, "created": 7, "model": "m"}
    events = []

    def add(choice: list[Any], **more: Any) -> None:
        text = json.dumps({**envelope, "choices": choice, **more}, separators=(",", ":"), ensure_ascii=False)
        events.append(f"data: {text}\n\n".encode())

    if chat:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        add([role], prompt_token_ids=prompt if shows else None)
    room = CONTEXT_TOKENS - len(prompt)
    assert room > 0
    most = min(room, body.get("max_completion_tokens") or body.get("max_tokens") or (room if chat else 16))
    source = tokens(prompt)
    planned = iter(sizes)
    count, finish, reason = 0, None, None
    while finish is None:
        ids: list[int] = []
        for _ in range(next(planned, 1)):
            ids.append(next(source))
            reason = words.push(ids[-1])
            finish = "stop" if reason is not None else "length" if count + len(ids) == most else None
            if finish is not None:
                break
        count += len(ids)
        shown = {"token_ids": ids if shows else None}
        ends = {"logprobs": None, "finish_reason": finish}
        text = words.take(finish is not None)
        if chat:
            last = {"stop_reason": reason} if finish else {}
            add([{"index": 0, "delta": {"content": text}, **ends, **last, **shown}])
        else:
            first = {"prompt_token_ids": prompt if shows and count == len(ids) else None}
            add([{"index": 0, "text": text, **ends, "stop_reason": reason, **first, **shown}])
    if (body.get("stream_options") or {}).get("include_usage"):
        total = {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + count, "completion_tokens": count}
        add([], usage=total)
    return [*events, b"data: [DONE]\n\n"]


def read(answer: bytes) -> dict[str, Any]:
    """What a client makes of a stream: text, finish reasons, ids, roles, usage; and that it is well-formed."""
    assert answer.endswith(b"data: [DONE]\n\n"), answer[-300:]
    events = [json.loads(data) for data in re.findall(rb"data: (\{.*\})\n\n", answer)]
    choices = [choice for event in events for choice in event["choices"]]
    deltas = [choice["delta"] if "delta" in choice else {"content": choice["text"]} for choice in choices]
    return {
        "text": "".join(delta.get("content") or "" for delta in deltas),
        "finish": [(c["finish_reason"], c.get("stop_reason")) for c in choices if c["finish_reason"]],
        "roles": [delta["role"] for delta in deltas if "role" in delta],
        "envelopes": {(event["id"], event["object"], event["created"], event["model"]) for event in events},
        "usage": [event["usage"] for event in events if event.get("usage")],
        "ids": [choice["token_ids"] for choice in choices if choice.get("token_ids")],
        "last": events[-1]["choices"] == [] if events else None,
    }
