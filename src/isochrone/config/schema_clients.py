"""Keys of the configuration file about clients: who may come in, which models there are, what a request may expect."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from isochrone.access.aliases import Target
from isochrone.config.fields import Group, Name, RouteName, Secret, entry


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
