"""The configuration file's schema: every key with its unit, default and meaning; unknown keys are errors.

Here are the file as a whole, where it listens, and instances; limits are in `schema_limits.py`, what is about clients
in `schema_clients.py`.
"""

from typing import Literal

from pydantic import Field, model_validator

from isochrone.access.paths import checked
from isochrone.config.fields import Group, HostPattern, Name, Part, Port, Secret, Url, entry
from isochrone.config.schema_clients import (
    CorsGroup,
    JwtGroup,
    KeysGroup,
    ModelsGroup,
    RoutesGroup,
    SloGroup,
    TenantEntry,
)
from isochrone.config.schema_limits import (
    CORE,
    DeadlinesGroup,
    HeartbeatGroup,
    LimitsGroup,
    PricingGroup,
    QueueGroup,
    RetryGroup,
    ScrapeGroup,
    WorkersGroup,
)


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
