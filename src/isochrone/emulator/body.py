"""From the JSON of a request to what the engine has to do, or a clear refusal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from isochrone.emulator.tokenizer import ID_LIMIT, TURN_END, TURN_START, encode, image_tokens

IMAGE_TOKENS = 256
"""Tokens of one image, whatever its size."""
COMPLETION_TOKENS_DEFAULT = 16
"""max_tokens of /v1/completions where the client gave none, as in OpenAI's API."""
CHOICES_MAX = 128
"""Most sequences of one request: prompts x n."""
_NEWLINE = encode("\n")


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.kind = status, message, param, kind

    def body(self) -> bytes:
        """The error as vLLM words it."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Body(msgspec.Struct, kw_only=True):
    """Fields of both generating routes. Others (temperature, top_p, seed, ...) are accepted and have no effect."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = 0
    n: int | None = 1
    ignore_eos: bool | None = False
    return_token_ids: bool | None = False
    # These would change the form of the answer, and the emulator cannot: see `_refuse_unknown_forms`.
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    logprobs: bool | int | None = None
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    use_beam_search: bool | None = False


class ChatBody(Body, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class CompletionBody(Body, kw_only=True):
    prompt: str | list[Any]
    """A text, texts, token ids or lists of ids: `_prompts` tells them apart."""
    echo: bool | None = False
    best_of: int | None = None
    suffix: str | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Ask:
    """A well-formed request to generate."""

    chat: bool
    prompts: list[list[int]]
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    max_tokens: int | None
    """None: as many as the context has room for."""
    min_tokens: int
    ignore_eos: bool


def decode_as(kind: type[Any]) -> Callable[[bytes], Any]:
    """A decoder of one body type whose errors are 400s that name the place."""
    decoder = msgspec.json.Decoder(kind)

    def decode(body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(400, f"Invalid request body: {error}") from None

    return decode


_decode_chat = decode_as(ChatBody)
_decode_completion = decode_as(CompletionBody)
decode_tokenize = decode_as(TokenizeBody)
decode_detokenize = decode_as(DetokenizeBody)


def read_chat(raw: bytes, model: str) -> Ask:
    body: ChatBody = _decode_chat(raw)
    check_model(body.model, model)
    _refuse_unknown_forms(body)
    prompt = chat_tokens(body.messages, body.tools, body.add_generation_prompt, body.continue_final_message)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return _ask(body, True, [prompt], limit)


def read_completion(raw: bytes, model: str) -> Ask:
    body: CompletionBody = _decode_completion(raw)
    check_model(body.model, model)
    _refuse_unknown_forms(body)
    if body.echo or body.suffix or (body.best_of or 1) > 1:
        raise Refused(400, "The emulated engine has no echo, suffix or best_of.", "echo")
    limit = COMPLETION_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens
    return _ask(body, False, _prompts(body.prompt), limit)


def _ask(body: Body, chat: bool, prompts: list[list[int]], max_tokens: int | None) -> Ask:
    options = body.stream_options or StreamOptions()
    n = 1 if body.n is None else body.n
    if n < 1 or n * len(prompts) > CHOICES_MAX:
        raise Refused(400, f"n must be at least 1, and prompts x n at most {CHOICES_MAX}.", "n")
    if max_tokens is not None and max_tokens < 1:
        raise Refused(400, f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens")
    min_tokens = body.min_tokens or 0
    if min_tokens < 0 or (max_tokens is not None and min_tokens > max_tokens):
        raise Refused(400, f"min_tokens must be from 0 to max_tokens, got {min_tokens}.", "min_tokens")
    stream = bool(body.stream)
    if body.stream_options is not None and not stream:
        raise Refused(400, "stream_options may only be given with stream = true.", "stream_options")
    return Ask(
        chat=chat,
        prompts=prompts,
        n=n,
        stream=stream,
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
    )


def check_model(asked: str | None, served: str) -> None:
    if asked is not None and asked != served:
        message = f"The model {asked[:200]!r} does not exist. This engine serves {served!r}."
        raise Refused(404, message, "model", "NotFoundError")


def _refuse_unknown_forms(body: Body) -> None:
    """What would change the form of the answer is refused rather than ignored."""
    form = (body.response_format or {}).get("type", "text")
    asked = {
        "stop": bool(body.stop),
        "stop_token_ids": bool(body.stop_token_ids),
        "logprobs": body.logprobs is not None and body.logprobs is not False,
        "prompt_logprobs": body.prompt_logprobs is not None,
        "response_format": form != "text",
        "use_beam_search": bool(body.use_beam_search),
    }
    for name, present in asked.items():
        if present:
            raise Refused(400, f"The emulated engine has no {name}.", name)


def _prompts(prompt: str | list[Any]) -> list[list[int]]:
    """One list of ids for each prompt: a text, texts, ids, or lists of ids."""
    if isinstance(prompt, str):
        return [_not_empty(encode(prompt))]
    if prompt and isinstance(prompt[0], int):
        return [_known_ids(prompt)]
    _not_empty(prompt)
    return [_not_empty(encode(one)) if isinstance(one, str) else _known_ids(one) for one in prompt]


def _not_empty(items: list[Any]) -> list[Any]:
    if not items:
        raise Refused(400, "The prompt is empty.", "prompt")
    return items


def _known_ids(prompt: object) -> list[int]:
    try:
        ids = _not_empty(msgspec.convert(prompt, list[int]))
    except msgspec.ValidationError as error:
        raise Refused(400, f"The prompt is neither text nor token ids: {error}.", "prompt") from None
    if min(ids) < 0 or max(ids) >= ID_LIMIT:
        raise Refused(400, "The prompt holds a token id that is not in the vocabulary.", "prompt")
    return ids


def chat_tokens(
    messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool, continue_final: bool
) -> list[int]:
    """The chat template: tools first, then each message as a turn, then the head of the answer's turn."""
    if not messages:
        raise Refused(400, "messages is empty.", "messages")
    if continue_final and add_generation_prompt:
        raise Refused(400, "continue_final_message needs add_generation_prompt = false.", "continue_final_message")
    tokens: list[int] = []
    if tools:
        tokens += _turn("tools", encode(msgspec.json.encode(tools).decode()))
    for message in messages:
        tokens += _turn(message.role, _content_tokens(message))
    if add_generation_prompt:
        tokens += [TURN_START, *encode("assistant"), *_NEWLINE]
    elif continue_final:
        del tokens[-2:]  # the end of the last turn and its line break: it goes on
    return tokens


def _turn(role: str, content: list[int]) -> list[int]:
    return [TURN_START, *encode(role), *_NEWLINE, *content, TURN_END, *_NEWLINE]


def _content_tokens(message: Message) -> list[int]:
    tokens: list[int] = []
    if message.tool_calls:
        tokens += encode(msgspec.json.encode(message.tool_calls).decode())
    if message.content is None:
        return tokens
    if isinstance(message.content, str):
        return tokens + encode(message.content)
    for part in message.content:
        if isinstance(text := part.get("text"), str):
            tokens += encode(text)
        elif part.get("type") in ("image_url", "input_image"):
            tokens += image_tokens(xxhash.xxh64_intdigest(msgspec.json.encode(part)), IMAGE_TOKENS)
        else:
            raise Refused(
                400, f"The emulated engine takes text and image_url parts, not {part.get('type')!r}.", "messages"
            )
    return tokens
