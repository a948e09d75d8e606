"""The bytes of an answer, as vLLM gives them: one Server-Sent Event a token, or one JSON object at the end.

Events are put together from parts that are made once for each answer, because this runs for every token: no JSON
encoder, one write to the socket. Each event is one HTTP chunk.
"""

from dataclasses import dataclass

import msgspec

from isochrone.emulator.body import Ask
from isochrone.emulator.text import WORD_JSON

HEAD_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@dataclass(slots=True)
class Counts:
    """Token counts of a request for `usage`."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def so_far(self) -> dict[str, object]:
        """For an event in mid-stream."""
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "total_tokens": total, "completion_tokens": self.completion}

    def usage(self) -> dict[str, object]:
        """For the end."""
        return {**self.so_far(), "prompt_tokens_details": {"cached_tokens": self.cached}}


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _event(value: object) -> bytes:
    return _chunk(b"data: " + msgspec.json.encode(value) + b"\n\n")


class StreamedAnswer:
    """Events of a streamed answer."""

    def __init__(self, ask: Ask, id: str, model: str, created: int, counts: Counts) -> None:
        self.ask = ask
        self.counts = counts
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        self._envelope = {"id": id, "object": kind, "created": created, "model": model}
        self._start = b"data: " + msgspec.json.encode(self._envelope)[:-1] + b',"choices":['
        self._plain = not (ask.return_token_ids or ask.continuous_usage)
        self._heads: dict[tuple[int, int], bytes] = {}
        """(choice, bytes of the word) -> everything before the word, chunk size included."""
        self._tail = self._after_word(None, None, None)

    def head(self) -> bytes:
        return HEAD_STREAM

    def first(self, index: int, prompt: list[int]) -> bytes:
        """What comes before a choice's first token."""
        if not self.ask.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        ids = {"prompt_token_ids": prompt if self.ask.return_token_ids else None}
        return _event({**self._envelope, "choices": [choice], **ids})

    def token(self, index: int, token: int, finish: str | None, prompt: list[int] | None) -> bytes:
        """One token. `prompt`: given with a choice's first token."""
        word = WORD_JSON[token]
        if self._plain and finish is None:
            head = self._heads.get((index, len(word)))
            if head is None:
                head = self._heads[index, len(word)] = self._before_word(index, len(word))
            return head + word + self._tail
        before = self._start + self._choice_start(index)
        return _chunk(before + word + self._after_word(token, finish, prompt)[:-2])

    def end(self) -> bytes:
        """After the last token of the last choice."""
        if not self.ask.include_usage:
            return _DONE
        return _event({**self._envelope, "choices": [], "usage": self.counts.usage()}) + _DONE

    def _choice_start(self, index: int) -> bytes:
        return (b'{"index":%d,"delta":{"content":"' if self.ask.chat else b'{"index":%d,"text":"') % index

    def _before_word(self, index: int, word_bytes: int) -> bytes:
        before = self._start + self._choice_start(index)
        return b"%x\r\n%s" % (len(before) + word_bytes + len(self._tail) - 2, before)

    def _after_word(self, token: int | None, finish: str | None, prompt: list[int] | None) -> bytes:
        """From the word's closing quote to the end of the HTTP chunk."""
        ask = self.ask
        ids = b"[%d]" % token if ask.return_token_ids and token is not None else b"null"
        reason = b"null" if finish is None else b'"%s"' % finish.encode()
        if ask.chat:
            stop = b"" if finish is None else b',"stop_reason":null'
            after = b'"},"logprobs":null,"finish_reason":%s%s,"token_ids":%s}]' % (reason, stop, ids)
        else:
            prompt_ids = msgspec.json.encode(prompt if ask.return_token_ids else None)
            after = (
                b'","logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":%s,"token_ids":%s}]'
                % (
                    reason,
                    prompt_ids,
                    ids,
                )
            )
        if ask.continuous_usage:
            after += b',"usage":' + msgspec.json.encode(self.counts.so_far())
        return after + b"}\n\n\r\n"


class WholeAnswer:
    """One JSON object once everything is generated."""

    def __init__(self, ask: Ask, id: str, model: str, created: int, counts: Counts) -> None:
        self.ask = ask
        self.counts = counts
        kind = "chat.completion" if ask.chat else "text_completion"
        self._envelope = {"id": id, "object": kind, "created": created, "model": model}
        self._tokens: dict[int, list[int]] = {}
        self._prompts: dict[int, list[int]] = {}
        self._finish: dict[int, str] = {}

    def head(self) -> bytes:
        return b""

    def first(self, index: int, prompt: list[int]) -> bytes:
        self._tokens[index] = []
        self._prompts[index] = prompt
        return b""

    def token(self, index: int, token: int, finish: str | None, prompt: list[int] | None) -> bytes:
        self._tokens[index].append(token)
        if finish is not None:
            self._finish[index] = finish
        return b""

    def end(self) -> bytes:
        shown = self.ask.return_token_ids
        choices = [self._choice(index) for index in sorted(self._tokens)]
        answer: dict[str, object] = {**self._envelope, "choices": choices, "usage": self.counts.usage()}
        if self.ask.chat:
            answer["prompt_token_ids"] = self._prompts[0] if shown else None
        payload = msgspec.json.encode(answer)
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
            len(payload),
            payload,
        )

    def _choice(self, index: int) -> dict[str, object]:
        shown = self.ask.return_token_ids
        tokens = self._tokens[index]
        text = "".join(WORD_JSON[token].decode() for token in tokens)
        common = {
            "index": index,
            "logprobs": None,
            "finish_reason": self._finish[index],
            "stop_reason": None,
            "token_ids": tokens if shown else None,
        }
        if self.ask.chat:
            return {**common, "message": {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}}
        return {**common, "text": text, "prompt_token_ids": self._prompts[index] if shown else None}


Answer = StreamedAnswer | WholeAnswer
