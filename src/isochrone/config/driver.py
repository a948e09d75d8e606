"""What the gateway is told beside the core's Settings: plain data, made by the loader or by hand in tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from isochrone.access.patterns import glob
from isochrone.access.tenants import Tenant

DEFAULT_ROUTE = "default"
"""Route class of a request that no rule and no header names another for."""
OTHER_ROUTE = "other"
"""Route class of a request whose header names one that is not configured."""

MiB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Bounds of the data path. Units are in the names."""

    head_bytes_max: int = 64 * 1024
    """Request line and headers of a client; more is 431."""
    headers_max: int = 128
    """Header lines of a client; more is 431."""
    body_bytes_max: int = 64 * MiB
    """Body of a client; more is 413, before it is read where Content-Length tells."""
    head_s_max: float = 10.0
    """From a request's first byte to the end of its head; then 408 and close."""
    body_s_max: float = 60.0
    """From the end of the head to the end of the body; then 408 and close."""
    idle_s_max: float = 75.0
    """A client's connection without a request is closed after this."""
    connections_max: int = 10_000
    """Open client connections; the next one is closed at once."""
    pipelined_max: int = 16
    """Requests of one client connection that are read ahead of the answer to the first."""
    upstream_connections_max: int = 4096
    """Open connections to one instance."""
    resolve_s: float = 5.0
    """Addresses of an instance's name older than this are looked up again."""
    upstream_idle_s_max: float = 4.0
    """An idle connection to an instance is closed after this: vLLM closes its own after 5 s."""
    answer_head_bytes_max: int = 64 * 1024
    """Status line and headers of an engine; more counts as a failure."""
    held_answer_bytes_max: int = 1 * MiB
    """An engine's error answer kept while another instance is tried."""
    client_buffer_bytes_max: int = 256 * 1024
    """Bytes not yet taken by the client; above it the engine is not read from."""
    client_write_s_max: float = 60.0
    """A client that takes nothing of its answer for so long, with its buffer full, is cut."""
    keep_alive_s: float | None = None
    """A stream that is silent for so long gets a comment, lest something between us and the client close it. It is then
    begun, so an instance that is lost before its first token is not simply replaced by another. None: never."""
    whole_answer_bytes_max: int = 256 * 1024
    """A non-streamed answer up to this is passed on in one piece: one that breaks off can be tried elsewhere."""
    bodies_bytes_max: int = 1024 * MiB
    """Bodies of all clients held at once; the request that would go over it is 503."""
    resume_bytes_max: int = 256 * MiB
    """Kept of all running streams so that they can be resumed; beyond it further ones cannot be."""
    resume_stream_bytes_max: int = 2 * MiB
    """Kept of one stream: prompt ids, text and output ids; a longer one cannot be resumed from there on."""
    linger_s_max: float = 1.0
    """After an early refusal the rest of the request is read and dropped for so long, lest a reset eat the answer."""
    sweep_s: float = 0.1
    """How often the limits in time above, and those of every attempt, are checked."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in. By default everybody, as the tenant `anonymous`, without limits."""

    keys: bool = False
    """Callers show an API key or a token."""
    anonymous: bool = False
    """With keys on: callers without one come in as `anonymous`."""
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    """Limits by tenant."""
    origins: tuple[str, ...] = ()
    """Origins whose web pages may call; empty: none."""
    preflight_s: int = 600
    """How long a browser may remember what a preflight said."""


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """Where API keys and usage are kept, and how often that is looked at."""

    file: str | None = None
    """SQLite."""
    redis: str | None = None
    """URL of Redis or Valkey. Neither: keys are off."""
    redis_password: str | None = field(default=None, repr=False)
    reload_s: float = 1.0
    flush_s: float = 5.0


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """Which tokens are taken in place of keys."""

    issuer: str
    audience: str
    jwks: str | None = None
    """URL, or `file:PATH`; None: found through the issuer."""
    tenant_claim: str = "tenant"
    tenant: str | None = None
    """Of tokens without that claim."""
    leeway_s: int = 30
    refresh_s: float = 300.0
    verdicts_max: int = 10_000


@dataclass(frozen=True, slots=True)
class Tls:
    """How to speak TLS to an instance. Paths of PEM files."""

    ca: str | None = None
    verify: bool = True
    client_cert: str | None = None
    client_key: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """How to reach one instance, beside its URL. The secret is never printed."""

    bearer: str | None = field(default=None, repr=False)
    """Sent as `Authorization: Bearer ...`, in place of the client's own."""
    tls: Tls | None = None
    allow: tuple[str, ...] | None = None
    """Hosts and ranges of addresses that it may be at (`admin.allow`), where it was added over the API; else None."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Gives requests a route class. All conditions that are set must hold; `*` stands for any run of characters."""

    route: str
    path: str | None = None
    model: str | None = None
    header: str | None = None
    """`name: value`, the name without regard to case."""


class Routes:
    """Route classes: which there are, and which one a request has. The first rule that holds wins, then the header."""

    def __init__(self, classes: tuple[str, ...] = (), rules: tuple[Rule, ...] = ()) -> None:
        self.classes = frozenset(classes) | {rule.route for rule in rules} | {DEFAULT_ROUTE}
        self.rules = rules
        self._compiled = [_Compiled(rule) for rule in rules]

    def of(self, path: str, model: str, header: Callable[[str], str | None]) -> str:
        """The route class. `header` looks one up by its name in lower case; `x-isochrone-route` asks for a class."""
        for rule in self._compiled:
            if rule.holds(path, model, header):
                return rule.route
        asked = header("x-isochrone-route")
        if asked is None:
            return DEFAULT_ROUTE
        return asked if asked in self.classes else OTHER_ROUTE


class _Compiled:
    """A rule with its patterns ready."""

    __slots__ = ("_header", "_model", "_path", "_value", "route")

    def __init__(self, rule: Rule) -> None:
        self.route = rule.route
        self._path = glob(rule.path) if rule.path is not None else None
        self._model = glob(rule.model) if rule.model is not None else None
        name, _, value = (rule.header or "").partition(":")
        self._header = name.strip().lower()
        self._value = glob(value.strip() or "*")

    def holds(self, path: str, model: str, header: Callable[[str], str | None]) -> bool:
        if self._path is not None and not self._path.fullmatch(path):
            return False
        if self._model is not None and not self._model.fullmatch(model):
            return False
        if not self._header:
            return True
        value = header(self._header)
        return value is not None and self._value.fullmatch(value) is not None
