"""What a client asked for, as far as scheduling needs to know. The body's bytes stay with the relay."""

import msgspec


class Slo(msgspec.Struct, frozen=True, gc=False):
    """A service level objective. Caps, shedding and deadlines act only for requests that carry one.

    `ttft_s`: arrival at the gateway to first token. `tpot_s`: mean gap between output tokens. None: no target.
    `sheddable`: may be refused with 503 once the TTFT target can no longer be met.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    sheddable: bool = False


class PromptSize(msgspec.Struct, frozen=True, gc=False):
    """What can be counted in a prompt without a tokenizer. `access/promptsize.py` turns it into tokens."""

    text_bytes: int = 0
    """UTF-8 bytes of text outside the CJK scripts (Latin, Cyrillic, Arabic, ...)."""
    cjk_bytes: int = 0
    """UTF-8 bytes of Chinese, Japanese and Korean text: they hold far more tokens a byte."""
    images: int = 0
    """Image, audio or video parts. Their base64 bytes never count as text."""
    token_ids: int = 0
    """Tokens given as ids: exact, nothing to estimate."""
    messages: int = 0
    """Chat messages; a template adds a few tokens to each."""


class Request(msgspec.Struct, gc=False, kw_only=True):
    """One request of a client: the descriptor that scheduling decides on."""

    id: str
    model: str
    path: str
    """Route template, e.g. `/v1/chat/completions`: one of a closed list, safe as a metric label."""
    generates: bool = True
    """False for embeddings, tokenize and the like: no first token, no output to forecast."""
    stream: bool = False
    size: PromptSize = PromptSize()
    blocks: tuple[int, ...] = ()
    """Chained 64-bit hashes of the prompt's blocks in template order; each stands for its block and all before it.
    Block k ends at byte `kv.hashing.block_end(k)` of the hashed text (token ids count four bytes each)."""
    hashed_bytes: int = 0
    """Length of the hashed text in bytes, the last partial block included."""
    max_tokens: int | None = None
    """The client's bound on output tokens, None where it gave none."""
    choices: int = 1
    """`n`: how many answers are generated side by side."""
    tenant: str = "anonymous"
    key: str = ""
    """Public id of the API key that the client showed; empty without one. Never the key."""
    route: str = "default"
    """Route class: first level of the output-length model and a bounded metric label."""
    session: str = ""
    """Key of the conversation where the client named one (header or `user`), else empty."""
    priority: int = 0
    slo: Slo | None = None
    limit_s: float | None = None
    """Longest time from arrival to the end of the answer that the client allows; None: it named none."""
    fallbacks: tuple[str, ...] = ()
    """Models that may answer in place of `model` if its instances cannot, in this order."""
    meant_for: str = ""
    """Model in whose place `model` is asked already, since nobody serves that one."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the engine reported them at the end of an answer. None: it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the engine's prefix cache held."""
    finish_reason: str | None = None
    """`stop`, `length`, ... of the first choice."""
