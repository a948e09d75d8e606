"""Engine endpoints: what we were told about them and what they tell about themselves."""

import enum

import msgspec


class State(enum.StrEnum):
    """Where an instance is in its life. The table of changes is `instances/lifecycle.py`."""

    JOINING = "joining"
    """Known, not yet heard from."""
    READY = "ready"
    """Takes requests."""
    SUSPECT = "suspect"
    """Missed a heartbeat or failed requests; takes requests only when nobody else can."""
    EJECTED = "ejected"
    """Missed too many; takes nothing."""
    PROBING = "probing"
    """Answers again after an ejection; must prove itself."""
    DRAINING = "draining"
    """Finishes what it has, takes nothing new."""
    GONE = "gone"
    """Removed."""


class InstanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine endpoint as configured. Credentials and TLS stay with the driver: the core never sees a secret."""

    id: str
    """Stable name, also a metric label and the `x-isochrone-instance` header; by default `host:port`."""
    url: str
    """`http://host:port`, no trailing slash."""
    engine: str = "auto"
    """`vllm`, `sglang`, `openai` or `auto`: which adapter reads it."""
    device_class: str | None = None
    """Configured class label (`h100`, `a100`, ...): instances of one class share a step-time model."""
    weight: float = 1.0
    """Share of work relative to its peers; its price is divided by it. 0: cordoned, takes nothing new."""
    slots: int | None = None
    """max_num_seqs where known; None: inferred from the engine's metrics."""
    models: tuple[str, ...] = ()
    """Model names where configured; empty: read from `/v1/models`."""
    max_model_len: int | None = None
    role: str = "mixed"
    cost_per_hour: float | None = None
    """Price of the card(s) an hour, in whatever unit; plays a part only where `Settings.money_price_s` is set."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One reading of an engine's own metrics. None means missing, which is never the same as zero."""

    engine: str = "openai"
    """`vllm`, `sglang`, or `openai` where no known metric was found."""
    running: int | None = None
    waiting: int | None = None
    kv_usage_ratio: float | None = None
    """Share of KV blocks in use, 0..1."""
    kv_capacity_tokens: int | None = None
    block_tokens: int | None = None
    prefix_query_tokens: float | None = None
    prefix_hit_tokens: float | None = None
    prompt_tokens: float | None = None
    """Counter: prompt tokens since the engine started."""
    generation_tokens: float | None = None
    """Counter: output tokens since the engine started."""
    preemptions: float | None = None
    iterations: float | None = None
    iteration_tokens: float | None = None
    """Count and sum of vLLM's iteration_tokens_total: steps run, and tokens in them."""
    started_at_unix_s: float | None = None
    """Engine process start: a change means a restart in place."""
    missing: tuple[str, ...] = ()
    """Names looked for and not found, for `status`."""


class ModelCard(msgspec.Struct, frozen=True, gc=False):
    """One entry of an engine's `/v1/models`."""

    name: str
    max_model_len: int | None = None
    parent: str | None = None
    """Base model of a LoRA adapter."""
