"""From the checked file to the plain structs that the core and the gateway take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from isochrone.access.aliases import Aliases
from isochrone.access.tenants import Tenant
from isochrone.config.driver import OTHER_ROUTE, Access, KeyPlan, Link, RelayLimits, Routes, Rule, Tls, TokenPlan
from isochrone.config.problems import ConfigError, nearest
from isochrone.config.schema import File, InstanceEntry
from isochrone.config.schema_clients import SloEntry
from isochrone.nouns.instance import InstanceSpec
from isochrone.nouns.request import Slo
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies

SECRET_BYTES_MAX = 64 * 1024
"""A longer credentials file is not read."""


@dataclass(frozen=True, slots=True)
class ScrapePlan:
    """How often instances are asked. Seconds."""

    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 5.0
    interval_s: float = 1.0
    timeout_s: float = 5.0
    backoff_s_max: float = 30.0
    models_interval_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that `isochrone serve` runs on."""

    file: File
    """As checked: what /admin/settings shows (it holds no secret)."""
    settings: Settings
    instances: tuple[InstanceSpec, ...]
    links: dict[str, Link]
    """By instance id."""
    access: Access
    keys: KeyPlan
    admin_key: str | None = field(repr=False)
    tokens: TokenPlan | None
    relay: RelayLimits
    scrape: ScrapePlan
    routes: Routes
    aliases: Aliases
    paths: tuple[str, ...] = field(default=())
    """Allowed beside the known ones."""
    text: str | None = field(default=None, repr=False)
    """The file as it was read; None: there is none."""


def build(file: File, environment: Mapping[str, str]) -> Configuration:
    """Raises ConfigError for what only shows now: duplicate ids, secrets that cannot be read."""
    specs: dict[str, InstanceSpec] = {}
    links: dict[str, Link] = {}
    problems: list[str] = []
    for index, entry in enumerate(file.instances):
        spec = instance_spec(entry)
        if spec.id in specs:
            problems.append(f"instances[{index}].id: {spec.id!r} is already the id of another instance")
        specs[spec.id] = spec
        try:
            links[spec.id] = link(entry, environment)
        except ValueError as error:
            problems.append(f"instances[{index}].credentials: {error}")
    try:
        keys = key_plan(file, environment)
    except ValueError as error:
        keys = KeyPlan()
        problems.append(f"keys.redis_password: {error}")
    admin_key = None
    try:
        admin_key = _secret(file.admin.key, environment) if file.admin.key else None
    except ValueError as error:
        problems.append(f"admin.key: {error}")
    settings = core_settings(file)
    if settings.heartbeat_eject_misses < settings.heartbeat_suspect_misses:
        problems.append("heartbeat.eject_misses: must not be less than heartbeat.suspect_misses")
    if settings.kv_hard_ratio < settings.kv_soft_ratio:
        problems.append("pricing.kv_hard_ratio: must not be less than pricing.kv_soft_ratio")
    for key, name in (("policy", file.policy), ("shadow", file.shadow)):
        if name is not None and not policies.exists(name):
            problems.append(f"{key} = {name!r}: no such policy; {nearest(name, policies.names())}")
    classes = possible_classes(file)
    unknown = [name for name in file.slo.routes if name not in classes]
    problems += [f"slo.routes.{name}: no such route class; {nearest(name, classes)}" for name in unknown]
    if problems:
        raise ConfigError(problems)
    return Configuration(
        file=file,
        settings=settings,
        instances=tuple(specs.values()),
        links=links,
        access=access(file),
        keys=keys,
        admin_key=admin_key,
        tokens=token_plan(file),
        relay=relay_limits(file),
        scrape=scrape_plan(file),
        routes=routes(file),
        aliases=Aliases({name: tuple(target.built() for target in to) for name, to in file.models.aliases.items()}),
        paths=file.paths,
    )


def routes(file: File) -> Routes:
    """Route classes and how requests are told apart."""
    rules = tuple(Rule(rule.route, rule.path, rule.model, rule.header) for rule in file.routes.rules)
    return Routes(file.routes.classes, rules)


def possible_classes(file: File) -> list[str]:
    """Every route class that a request can have."""
    of_tenants = {entry.route for entry in file.tenants.values() if entry.route is not None}
    return sorted(routes(file).classes | of_tenants | {OTHER_ROUTE})


def instance_spec(entry: InstanceEntry) -> InstanceSpec:
    """One instance as the core knows it."""
    parts = urlsplit(entry.url)
    return InstanceSpec(
        id=entry.id or parts.netloc,
        url=entry.url,
        engine=entry.engine,
        device_class=entry.device_class,
        weight=entry.weight,
        slots=entry.slots,
        models=entry.models,
        max_model_len=entry.max_model_len,
        cost_per_hour=entry.cost_per_hour,
    )


def link(entry: InstanceEntry, environment: Mapping[str, str]) -> Link:
    """How to reach it. Raises ValueError where the secret is not there."""
    tls = entry.tls
    return Link(
        bearer=_secret(entry.credentials, environment) if entry.credentials else None,
        tls=Tls(tls.ca, tls.verify, tls.client_cert, tls.client_key) if tls else None,
    )


def _secret(reference: str, environment: Mapping[str, str]) -> str:
    if reference.startswith("$"):
        value = environment.get(reference[1:], "")
        if not value:
            raise ValueError(f"the environment variable {reference[1:]} is not set")
    else:
        path = Path(reference.removeprefix("file:"))
        try:
            with path.open("rb") as stream:
                value = stream.read(SECRET_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not ASCII'}") from None
        if not value:
            raise ValueError(f"{path} is empty")
    if not value.isascii() or not value.isprintable():
        raise ValueError("the secret holds characters that a header may not hold")
    return value


def core_settings(file: File) -> Settings:
    """The core's settings. Each group's keys carry their group's prefix there."""
    queue, retry, heartbeat, deadlines = file.queue, file.retry, file.heartbeat, file.deadlines
    return Settings(
        policy=file.policy,
        shadow=file.shadow,
        hold=file.hold,
        resume=file.resume,
        without=frozenset(file.without),
        queue_requests_max=queue.requests_max,
        queue_wait_s_max=queue.wait_s_max,
        attempts_max=retry.attempts_max,
        retry_ratio=retry.ratio,
        retry_tokens_per_s=retry.tokens_per_s,
        retry_tokens_max=retry.tokens_max,
        hedge_ratio=retry.hedge_ratio,
        heartbeat_interval_s=heartbeat.interval_s,
        heartbeat_timeout_s=heartbeat.timeout_s,
        heartbeat_suspect_misses=heartbeat.suspect_misses,
        heartbeat_eject_misses=heartbeat.eject_misses,
        heartbeat_ready_answers=heartbeat.ready_answers,
        failures_suspect=heartbeat.failures_suspect,
        failures_eject=heartbeat.failures_eject,
        scrape_interval_s=file.scrape.interval_s,
        scrape_age_s_max=file.scrape.age_s_max,
        **file.pricing.model_dump(),
        connect_s=deadlines.connect_s,
        first_token_s=deadlines.first_token_s,
        gap_s=deadlines.gap_s,
        whole_s=deadlines.whole_s,
        silence_s=deadlines.silence_s,
        drain_move_s=deadlines.drain_move_s,
        drain_s_max=deadlines.drain_s_max,
        slo=_slo(file.slo.default),
        slo_by_tenant={name: slo for name, entry in file.slo.tenants.items() if (slo := _slo(entry))},
        slo_by_model={name: slo for name, entry in file.slo.models.items() if (slo := _slo(entry))},
        slo_by_route={name: slo for name, entry in file.slo.routes.items() if (slo := _slo(entry))},
        prefix_blocks_max=file.limits.prefix_blocks_max,
        decisions_max=file.limits.decisions_max,
    )


def _slo(entry: SloEntry | None) -> Slo | None:
    return Slo(entry.ttft_s, entry.tpot_s, entry.sheddable) if entry else None


def access(file: File) -> Access:
    """Who may come in, and what they may use."""
    return Access(
        keys=file.keys.file is not None or file.keys.redis is not None or file.jwt.issuer is not None,
        anonymous=file.keys.anonymous,
        tenants={name: Tenant(name=name, **entry.model_dump()) for name, entry in file.tenants.items()},
        origins=file.cors.origins,
        preflight_s=file.cors.preflight_s,
    )


def key_plan(file: File, environment: Mapping[str, str]) -> KeyPlan:
    """Where keys are kept. Raises ValueError where the password is not there."""
    keys = file.keys
    password = _secret(keys.redis_password, environment) if keys.redis_password else None
    return KeyPlan(keys.file, keys.redis, password, keys.reload_s, keys.flush_s)


def token_plan(file: File) -> TokenPlan | None:
    """Which tokens are taken; None: none."""
    if file.jwt.issuer is None:
        return None
    return TokenPlan(**file.jwt.model_dump())


def relay_limits(file: File) -> RelayLimits:
    """Bounds of the data path."""
    names = set(RelayLimits.__dataclass_fields__)
    return RelayLimits(**{name: value for name, value in file.limits.model_dump().items() if name in names})


def scrape_plan(file: File) -> ScrapePlan:
    """How often instances are asked."""
    return ScrapePlan(
        heartbeat_interval_s=file.heartbeat.interval_s,
        heartbeat_timeout_s=file.heartbeat.timeout_s,
        interval_s=file.scrape.interval_s,
        timeout_s=file.scrape.timeout_s,
        backoff_s_max=file.scrape.backoff_s_max,
        models_interval_s=file.scrape.models_interval_s,
    )
