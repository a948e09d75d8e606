"""The configuration file's schema: every key with its unit, default and meaning; unknown keys are errors.

Defaults come from where the values are used (`Settings`, `RelayLimits`), so that each is written down once.
"""

from ipaddress import ip_network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from isochrone.access.aliases import Target
from isochrone.access.paths import checked
from isochrone.config.driver import RelayLimits
from isochrone.config.problems import nearest
from isochrone.nouns.settings import Settings
from isochrone.scheduling.parts import PARTS

CORE = Settings()
RELAY = RelayLimits()


class Group(BaseModel):
    """One mapping of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def entry(default: Any, unit: str, meaning: str, **bounds: Any) -> Any:
    """A setting with its unit, its meaning and its bounds (`gt`, `ge`, `le`)."""
    return Field(default=default, description=meaning, json_schema_extra={"unit": unit}, **bounds)


def instance_url(url: str) -> str:
    """`http://host:port`, checked and without a trailing slash; raises ValueError that says what is wrong."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT")
    if parts.username or parts.password:
        raise ValueError("no user name or password in a URL; use `credentials`")
    if parts.query or parts.fragment:
        raise ValueError("expected a URL without query or fragment")
    if not 0 < (parts.port or {"http": 80, "https": 443}[parts.scheme]) < 65536:
        raise ValueError("the port must be between 1 and 65535")
    return url.rstrip("/")


def secret_reference(text: str) -> str:
    """`$NAME` or `file:PATH`: the file itself never holds a secret."""
    if not (text.startswith("$") and len(text) > 1) and not (text.startswith("file:") and len(text) > 5):
        raise ValueError("expected $NAME (an environment variable) or file:PATH, not the secret itself")
    return text


def host_pattern(text: str) -> str:
    """A pattern of host names, or with a slash a range of addresses; raises ValueError for a range that is none."""
    if "/" in text:
        ip_network(text)
    return text


def part(name: str) -> str:
    """A part of the scheduler that can be left out; raises ValueError with the nearest name."""
    if name not in PARTS:
        raise ValueError(f"no such part of the scheduler; {nearest(name, sorted(PARTS))}")
    return name


Url = Annotated[str, AfterValidator(instance_url)]
HostPattern = Annotated[str, AfterValidator(host_pattern)]
Secret = Annotated[str, AfterValidator(secret_reference)]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\w.:@+\[\]-]+$")]
RouteName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")]
Part = Annotated[str, AfterValidator(part)]
Port = Annotated[int, Field(ge=0, le=65535)]


class TlsGroup(Group):
    """TLS to one instance."""

    ca: str | None = Field(
        default=None, description="PEM file of the authority that signed the instance's certificate."
    )
    verify: bool = Field(default=True, description="Check the instance's certificate.")
    client_cert: str | None = Field(default=None, description="PEM file of our own certificate.")
    client_key: str | None = Field(default=None, description="PEM file of its key.")


class InstanceEntry(Group):
    """One engine endpoint."""

    url: Url = Field(description="`http://host:port` of the engine.")
    id: Name | None = Field(
        default=None, description="Name in metrics, headers and the admin API; default: `host:port`."
    )
    device_class: str | None = Field(
        default=None, alias="class", description="Instances of one class share a step-time model (`h100`, `a100`)."
    )
    weight: float = Field(
        default=1.0, ge=0, le=1000, description="Share of work relative to its peers; 0 takes nothing new."
    )
    slots: int | None = Field(default=None, ge=1, description="The engine's max_num_seqs; inferred where not given.")
    engine: Literal["auto", "vllm", "sglang", "openai"] = Field(default="auto", description="Whose metrics it speaks.")
    models: tuple[str, ...] = Field(default=(), description="Model names; read from `/v1/models` where not given.")
    max_model_len: int | None = Field(
        default=None, ge=1, description="Longest context in tokens; read from `/v1/models`."
    )
    cost_per_hour: float | None = Field(
        default=None,
        ge=0,
        description="Price of its card(s) an hour; plays a part where `pricing.money_price_s` is set.",
    )
    credentials: Secret | None = Field(default=None, description="Bearer token for the engine: `$NAME` or `file:PATH`.")
    tls: TlsGroup | None = Field(default=None, description="How to speak TLS to it.")


class ListenTlsGroup(Group):
    """TLS for clients."""

    cert: str | None = Field(default=None, description="PEM file of our certificate; naming one turns TLS on.")
    key: str | None = Field(default=None, description="PEM file of its key; where not given, it is in `cert` too.")
    client_ca: str | None = Field(
        default=None,
        description="PEM file of the authority that must have signed clients' certificates.",
    )

    @model_validator(mode="after")
    def _has_cert(self) -> "ListenTlsGroup":
        if self.cert is None and (self.key is not None or self.client_ca is not None):
            raise ValueError("`key` and `client_ca` need a `cert`")
        return self


class ListenGroup(Group):
    """Where clients connect."""

    host: str = Field(default="127.0.0.1", description="Address to listen on; `0.0.0.0` for all.")
    port: Port = Field(default=8080, description="Port for clients; 0 takes a free one.")
    half_close: Literal["leave", "allow"] = Field(
        default="leave",
        description="A client that closes its sending side has left (`leave`), or still gets its answers (`allow`).",
    )
    tls: ListenTlsGroup = ListenTlsGroup()


class AdminGroup(Group):
    """The admin API and /metrics."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. Without a key whoever reaches it may do everything.",
    )
    port: Port = Field(default=8081, description="Port of the admin API and /metrics; 0 takes a free one.")
    key: Secret | None = Field(
        default=None, description="Key that every call but /health and /ready must show: `$NAME` or `file:PATH`."
    )
    allow: tuple[HostPattern, ...] = Field(
        default=(),
        description="Hosts (`*` matches any run) and ranges (`10.0.0.0/8`) that instances added by the API may be at; "
        "empty: any.",
    )


class WorkersGroup(Group):
    """Processes that share the work."""

    count: int = entry(1, "processes", "Relay processes; with 1 there is one process in all.", ge=1, le=64)
    brain_wait_s_max: float = entry(
        5.0, "s", "Longest wait of a request while the process that decides is started anew; then 503.", gt=0
    )
    hung_s_max: float = entry(
        15.0, "s", "A process whose event loop stands still for so long is ended and started again.", ge=2
    )


class QueueGroup(Group):
    """Requests held in the gateway."""

    requests_max: int = entry(CORE.queue_requests_max, "requests", "Held requests; one more is refused with 503.", ge=0)
    wait_s_max: float = entry(CORE.queue_wait_s_max, "s", "Longest hold; then 503.", gt=0)


class RetryGroup(Group):
    """Attempts that failed before their first byte."""

    attempts_max: int = entry(CORE.attempts_max, "attempts", "Dispatches of one request, the first included.", ge=1)
    ratio: float = entry(
        CORE.retry_ratio, "ratio", "Retry budget: retried prompt tokens as a share of dispatched ones.", ge=0, le=1
    )
    tokens_per_s: float = entry(CORE.retry_tokens_per_s, "tokens/s", "Retry budget: plus this much.", ge=0)
    tokens_max: float = entry(CORE.retry_tokens_max, "tokens", "Retry budget: saved up to this much.", ge=0)
    hedge_ratio: float = entry(
        CORE.hedge_ratio,
        "ratio",
        "Share of requests for which a second instance may be asked when the first is late; 0: never.",
        ge=0,
        le=0.5,
    )


class HeartbeatGroup(Group):
    """Is an instance alive."""

    interval_s: float = entry(CORE.heartbeat_interval_s, "s", "Between two heartbeats of one instance.", gt=0)
    timeout_s: float = entry(CORE.heartbeat_timeout_s, "s", "A heartbeat without an answer is a miss after this.", gt=0)
    suspect_misses: int = entry(CORE.heartbeat_suspect_misses, "misses", "Misses in a row: suspect.", ge=1)
    eject_misses: int = entry(CORE.heartbeat_eject_misses, "misses", "Misses in a row: ejected.", ge=1)
    ready_answers: int = entry(CORE.heartbeat_ready_answers, "answers", "Good answers in a row: ready again.", ge=1)
    failures_suspect: int = entry(CORE.failures_suspect, "attempts", "Failed attempts in a row: suspect.", ge=1)
    failures_eject: int = entry(CORE.failures_eject, "attempts", "Failed attempts in a row: ejected.", ge=1)


class ScrapeGroup(Group):
    """Reading an instance's own metrics and models."""

    interval_s: float = entry(CORE.scrape_interval_s, "s", "Between two scrapes of one instance.", gt=0)
    timeout_s: float = entry(5.0, "s", "A scrape without an answer is given up after this.", gt=0)
    age_s_max: float = entry(CORE.scrape_age_s_max, "s", "Scraped values older than this count as unknown.", gt=0)
    backoff_s_max: float = entry(30.0, "s", "Longest pause between scrapes of an engine that has no /metrics.", gt=0)
    models_interval_s: float = entry(30.0, "s", "Between two readings of `/v1/models` of one instance.", gt=0)


class DeadlinesGroup(Group):
    """Longest waits for an engine."""

    connect_s: float = entry(CORE.connect_s, "s", "To connect to an instance.", gt=0)
    first_token_s: float | None = entry(
        CORE.first_token_s, "s", "From dispatch to the first output of a stream; null: no limit.", gt=0
    )
    gap_s: float | None = entry(CORE.gap_s, "s", "Between two pieces of output; null: no limit.", gt=0)
    whole_s: float | None = entry(CORE.whole_s, "s", "From dispatch to the end of the answer; null: no limit.", gt=0)
    silence_s: float | None = entry(
        CORE.silence_s,
        "s",
        "No sign of work for so long beyond what its work explains: an instance hangs; null: only the limits above.",
        gt=0,
    )
    drain_move_s: float = entry(
        CORE.drain_move_s, "s", "Streams still running on a draining instance after this are moved.", ge=0
    )
    drain_s_max: float = entry(CORE.drain_s_max, "s", "SIGTERM: longest wait for running requests.", ge=0)


class LimitsGroup(Group):
    """Bounds of the data path."""

    head_bytes_max: int = entry(RELAY.head_bytes_max, "bytes", "Request line and headers; more is 431.", ge=1024)
    headers_max: int = entry(RELAY.headers_max, "headers", "Header lines of a request; more is 431.", ge=8)
    body_bytes_max: int = entry(RELAY.body_bytes_max, "bytes", "Body of a request; more is 413.", ge=1)
    head_s_max: float = entry(RELAY.head_s_max, "s", "From a request's first byte to the end of its head.", gt=0)
    body_s_max: float = entry(RELAY.body_s_max, "s", "From the end of the head to the end of the body.", gt=0)
    idle_s_max: float = entry(RELAY.idle_s_max, "s", "A client's connection without a request is closed.", gt=0)
    connections_max: int = entry(RELAY.connections_max, "connections", "Open client connections.", ge=1)
    pipelined_max: int = entry(RELAY.pipelined_max, "requests", "Requests read ahead on one connection.", ge=1)
    upstream_connections_max: int = entry(
        RELAY.upstream_connections_max, "connections", "Open connections to one instance.", ge=1
    )
    resolve_s: float = entry(
        RELAY.resolve_s, "s", "Addresses of an instance's name older than this are looked up again.", ge=0
    )
    upstream_idle_s_max: float = entry(
        RELAY.upstream_idle_s_max, "s", "An idle connection to an instance is closed (vLLM closes after 5 s).", gt=0
    )
    answer_head_bytes_max: int = entry(
        RELAY.answer_head_bytes_max, "bytes", "Status line and headers of an engine's answer.", ge=1024
    )
    held_answer_bytes_max: int = entry(
        RELAY.held_answer_bytes_max, "bytes", "An engine's error kept while another instance is tried.", ge=1024
    )
    client_buffer_bytes_max: int = entry(
        RELAY.client_buffer_bytes_max, "bytes", "Not yet taken by a client; above it the engine is not read.", ge=4096
    )
    client_write_s_max: float = entry(
        RELAY.client_write_s_max, "s", "A client with a full buffer that takes nothing for so long is cut.", gt=0
    )
    keep_alive_s: float | None = entry(
        RELAY.keep_alive_s, "s", "A stream that is silent for so long gets an SSE comment; null: never.", gt=0
    )
    whole_answer_bytes_max: int = entry(
        RELAY.whole_answer_bytes_max, "bytes", "A non-streamed answer up to this is passed on in one piece.", ge=0
    )
    bodies_bytes_max: int = entry(
        RELAY.bodies_bytes_max, "bytes", "Bodies of all clients held at once; above it 503.", ge=1
    )
    resume_bytes_max: int = entry(
        RELAY.resume_bytes_max, "bytes", "Kept of all running streams so that they can be resumed.", ge=0
    )
    resume_stream_bytes_max: int = entry(
        RELAY.resume_stream_bytes_max, "bytes", "Kept of one stream; a longer one cannot be resumed.", ge=0
    )
    linger_s_max: float = entry(
        RELAY.linger_s_max, "s", "After an early refusal the rest of the request is read and dropped.", ge=0
    )
    sweep_s: float = entry(RELAY.sweep_s, "s", "How often limits in time are checked.", gt=0)
    decisions_max: int = entry(CORE.decisions_max, "decisions", "Decision records kept for /admin/decisions.", ge=1)
    prefix_blocks_max: int = entry(
        CORE.prefix_blocks_max, "blocks", "Prefix index: blocks of an instance whose KV size is unknown.", ge=1
    )
    log_lines_max: int = entry(
        10_000, "lines", "Access log lines not yet written; more are counted and left out.", ge=1
    )


class PricingGroup(Group):
    """Constants of the equal-cost price and of late binding."""

    chunk_tokens: int = entry(CORE.chunk_tokens, "tokens", "max_num_batched_tokens where not inferred.", ge=1)
    samples_warm: int = entry(CORE.samples_warm, "samples", "Needed before a pool prices, holds or sheds.", ge=1)
    hold_chunks: float = entry(CORE.hold_chunks, "chunks", "Pending prefill allowed on an instance.", gt=0)
    hold_chunks_sheddable: float = entry(CORE.hold_chunks_sheddable, "chunks", "The same for sheddable requests.", gt=0)
    hold_slack_s: float = entry(CORE.hold_slack_s, "s", "So much dearer is taken; more, the longer the wait.", ge=0)
    hold_slack_sheddable_s: float = entry(CORE.hold_slack_sheddable_s, "s", "The same for sheddable requests.", ge=0)
    work_price: float = entry(CORE.work_price, "s/s", "Price of a second of own prefill beyond itself.", ge=0)
    work_price_sheddable: float = entry(CORE.work_price_sheddable, "s/s", "The same for sheddable requests.", ge=0)
    kv_soft_ratio: float = entry(CORE.kv_soft_ratio, "ratio", "KV use above which a place costs more.", gt=0, le=1)
    kv_soft_price_s: float = entry(CORE.kv_soft_price_s, "s", "Price of KV use above that, times the excess.", ge=0)
    kv_hard_ratio: float = entry(CORE.kv_hard_ratio, "ratio", "KV use above which a place is closed.", gt=0, le=1)
    cap_ratio: float | None = entry(
        CORE.cap_ratio, "ratio", "Share of a TPOT target that a decode step may take; null: no cap.", gt=0, le=1
    )
    slow_start_s: float = entry(
        CORE.slow_start_s, "s", "A new instance's allowed pending prefill grows over this time.", ge=0
    )
    money_price_s: float = entry(
        CORE.money_price_s, "s", "What one unit of money is worth, for instances with `cost_per_hour`.", ge=0
    )
    slots_default: int | None = entry(
        CORE.slots_default, "requests", "max_num_seqs of instances that give none; null: inferred.", ge=1
    )


class TargetEntry(Group):
    """One model that an alias stands for."""

    model: str = Field(min_length=1, max_length=256, description="Model name.")
    weight: float = Field(default=1.0, ge=0, le=1000, description="Share of the alias's traffic.")

    fallback: bool = Field(
        default=False,
        description="Takes no share: asked once, before the first byte, where the others are missing, fail or refuse.",
    )

    def built(self) -> Target:
        return Target(self.model, self.weight, self.fallback)


def targets(value: Any) -> Any:
    """A lone model name stands for a list of one."""
    return ({"model": value},) if isinstance(value, str) else value


def shared(entries: tuple[TargetEntry, ...]) -> tuple[TargetEntry, ...]:
    """Fallback models stand behind another one; raises ValueError where there is none."""
    if all(entry.fallback for entry in entries):
        raise ValueError("at least one model must not be a fallback")
    return entries


Targets = Annotated[
    tuple[TargetEntry, ...], BeforeValidator(targets), Field(min_length=1, max_length=64), AfterValidator(shared)
]


class ModelsGroup(Group):
    """Names of models."""

    aliases: dict[str, Targets] = Field(
        default={},
        max_length=1024,
        description="Alias -> model, or a list of `{model, weight, fallback}` over which its traffic is split.",
    )


class SloEntry(Group):
    """A service level objective."""

    ttft_s: float | None = entry(None, "s", "Arrival to first token.", gt=0)
    tpot_s: float | None = entry(None, "s", "Mean gap between output tokens.", gt=0)
    sheddable: bool = Field(default=False, description="May be refused with 503 once its TTFT can no longer be met.")


class SloGroup(Group):
    """Objectives: the request's own (headers) first, then its tenant's, its model's, its route's, and the default."""

    default: SloEntry | None = Field(default=None, description="For every request that has no other.")
    tenants: dict[str, SloEntry] = Field(default={}, description="By tenant.")
    models: dict[str, SloEntry] = Field(default={}, description="By model name.")
    routes: dict[str, SloEntry] = Field(default={}, description="By route class.")


class KeysGroup(Group):
    """API keys: who may come in. Off until a store is named."""

    file: str | None = Field(default=None, description="SQLite file of API keys and usage; naming one turns keys on.")
    redis: str | None = Field(
        default=None,
        pattern=r"^rediss?://[^@]+$",
        description="Or Redis or Valkey: `redis://HOST:PORT/DB`, `rediss://`.",
    )
    redis_password: Secret | None = Field(default=None, description="Its password: `$NAME` or `file:PATH`.")
    anonymous: bool = Field(default=False, description="Callers without a key come in, as the tenant `anonymous`.")
    reload_s: float = entry(1.0, "s", "How often the store is asked for new and revoked keys.", gt=0)
    flush_s: float = entry(5.0, "s", "How often usage is written to the store.", gt=0)

    @model_validator(mode="after")
    def _has_one_store(self) -> "KeysGroup":
        if self.file is not None and self.redis is not None:
            raise ValueError("keys are kept in a file or in Redis, not in both")
        return self


class JwtGroup(Group):
    """Tokens of an OIDC issuer, as an alternative to keys. Off until an issuer is named."""

    issuer: str | None = Field(default=None, description="`iss` of its tokens; naming one turns tokens on.")
    audience: str | None = Field(default=None, description="`aud` that a token must name: this gateway.")
    jwks: str | None = Field(
        default=None, description="Its keys: a URL, or `file:PATH`; found through the issuer where not given."
    )
    tenant_claim: str = Field(default="tenant", min_length=1, description="Claim that names the tenant.")
    tenant: Name | None = Field(default=None, description="Tenant of tokens without that claim; else they are refused.")
    leeway_s: int = entry(30, "s", "By how much the issuer's clock may differ from ours.", ge=0)
    refresh_s: float = entry(300.0, "s", "How often its keys are read anew.", gt=0)
    verdicts_max: int = entry(10_000, "tokens", "Checked tokens remembered until they expire.", ge=1)

    @model_validator(mode="after")
    def _has_audience(self) -> "JwtGroup":
        if self.issuer is not None and self.audience is None:
            raise ValueError("an issuer needs an audience: without one, tokens made for other services would open this")
        return self


class TenantEntry(Group):
    """What one tenant may use, all its keys together. What is not set has no limit."""

    requests_per_minute: int | None = entry(None, "requests/min", "Requests admitted.", ge=1)
    tokens_per_minute: int | None = entry(None, "tokens/min", "Prompt and output tokens.", ge=1)
    concurrent_requests: int | None = entry(None, "requests", "Held and running at once.", ge=1)
    models: tuple[str, ...] = Field(
        default=(), max_length=256, description="Models that it may use (`*` matches any run); empty: all."
    )
    priority: int = Field(default=0, ge=-100, le=100, description="A higher one goes wholly first in the queue.")
    route: RouteName | None = Field(
        default=None, description="Route class of its requests where no rule and no header names one."
    )


class CorsGroup(Group):
    """Web pages of other origins."""

    origins: tuple[str, ...] = Field(
        default=(),
        max_length=256,
        description="Origins that may call (`https://app.example`, `*` for any); empty: none.",
    )
    preflight_s: int = entry(600, "s", "How long a browser may remember what a preflight said.", ge=0)


class RuleEntry(Group):
    """Gives a route class to requests; all conditions that are set must hold (`*` matches any run)."""

    route: RouteName = Field(description="The class.")
    path: str | None = Field(default=None, description="Path, e.g. `/v1/chat/*`.")
    model: str | None = Field(default=None, description="Model name.")
    header: str | None = Field(default=None, description="`name: value`.")

    @model_validator(mode="after")
    def _has_condition(self) -> "RuleEntry":
        if self.path is None and self.model is None and self.header is None:
            raise ValueError("a rule needs at least one of path, model and header")
        return self


class RoutesGroup(Group):
    """Route classes: a bounded metric label, and the first level of the output-length model."""

    classes: tuple[RouteName, ...] = Field(
        default=(), max_length=31, description="Classes that `x-isochrone-route` may name."
    )
    rules: tuple[RuleEntry, ...] = Field(default=(), max_length=256, description="The first rule that holds wins.")


class File(Group):
    """The whole file."""

    listen: ListenGroup = ListenGroup()
    admin: AdminGroup = AdminGroup()
    workers: WorkersGroup = WorkersGroup()
    policy: str = Field(default=CORE.policy, description="How requests are placed.")
    shadow: str | None = Field(
        default=CORE.shadow, description="A second policy that decides and records, and never acts."
    )
    resume: bool = Field(default=CORE.resume, description="Continue streams that lose their instance on another one.")
    hold: bool = Field(default=CORE.hold, description="Late binding: hold requests until a good place is free.")
    without: tuple[Part, ...] = Field(default=(), description="Parts of the scheduler that are left out.")
    seed: int = Field(default=0, description="Seed for breaking ties.")
    inject: Literal["usage", "none"] = Field(
        default="usage", description="Fields spliced into bodies: `usage` (include_usage, return_token_ids) or `none`."
    )
    instances: tuple[InstanceEntry, ...] = Field(default=(), max_length=4096, description="Engine endpoints.")
    paths: tuple[str, ...] = Field(
        default=(), max_length=256, description="Paths passed through beside the known ones."
    )
    queue: QueueGroup = QueueGroup()
    retry: RetryGroup = RetryGroup()
    heartbeat: HeartbeatGroup = HeartbeatGroup()
    scrape: ScrapeGroup = ScrapeGroup()
    deadlines: DeadlinesGroup = DeadlinesGroup()
    limits: LimitsGroup = LimitsGroup()
    pricing: PricingGroup = PricingGroup()
    slo: SloGroup = SloGroup()
    routes: RoutesGroup = RoutesGroup()
    models: ModelsGroup = ModelsGroup()
    keys: KeysGroup = KeysGroup()
    jwt: JwtGroup = JwtGroup()
    tenants: dict[Name, TenantEntry] = Field(
        default={},
        description="By name; `default` is for all that are not named, `anonymous` for callers without a key.",
    )
    cors: CorsGroup = CorsGroup()
    watch_file_s: float | None = entry(
        None, "s", "How often this file is looked at for changes; null: only when told (SIGHUP, admin API).", gt=0
    )
    access_log: str = Field(default="off", description="`off`, `-` for standard output, or a file's path.")
    warm_start: str | None = Field(default=None, description="File that keeps what was learnt over restarts.")

    @model_validator(mode="after")
    def _paths_are_paths(self) -> "File":
        for path in self.paths:
            checked(path)
        return self
