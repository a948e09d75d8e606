"""The front desk: what a request is, whether it may come in, and who answers it."""

import math
import random
import re
from functools import partial
from typing import TYPE_CHECKING

from isochrone.access import wire
from isochrone.access.aliases import Aliases, draw_of, renamed
from isochrone.access.contract import contract_of
from isochrone.access.cors import Cors
from isochrone.access.inflate import GZIP, Inflater
from isochrone.access.inject import with_usage
from isochrone.access.paths import Paths, Route
from isochrone.access.scan import BadRequest, Scan, scan
from isochrone.access.tenants import ANONYMOUS
from isochrone.config.driver import DEFAULT_ROUTE, RelayLimits, Routes
from isochrone.gateway import local
from isochrone.gateway.doorkeeper import Caller, Doorkeeper
from isochrone.gateway.exchange import Exchange
from isochrone.gateway.inbound import Inbound
from isochrone.nouns.decision import Decision
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import Arrived
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request, Slo

if TYPE_CHECKING:
    from isochrone.gateway.app import Gateway
    from isochrone.gateway.server import ClientConnection

ID_CHARS_MAX = 128
"""Longest request id of a client that is taken; for another one we make our own."""
STRANGER_DIGITS = 4
"""A declared body with more digits of length than this is not read before its sender is known."""

_sane_id = re.compile(rb"[A-Za-z0-9._:-]{1,%d}" % ID_CHARS_MAX).fullmatch
_SLO_HEADERS = frozenset((b"x-slo-ttft-ms", b"x-slo-tpot-ms", b"x-isochrone-sheddable"))
_WISHES = _SLO_HEADERS | {b"x-request-timeout-ms", b"x-isochrone-session", b"x-session-id", b"x-isochrone-route"}
"""What few requests have: looked for all at once."""
_UNUSUAL = frozenset((b"origin", b"content-encoding", b"expect"))
_TRUTH = {b"true": True, b"1": True, b"false": False, b"0": False}
SESSION_CHARS_MAX = 256
"""Longest session name; what is longer is cut."""


class Reception:
    """Checks heads and bodies as they come in, and serves each request once it is whole."""

    def __init__(
        self,
        gateway: "Gateway",
        paths: Paths,
        routes: Routes,
        limits: RelayLimits,
        inject: bool,
        resume: bool,
        door: Doorkeeper | None = None,
        cors: Cors | None = None,
        aliases: Aliases | None = None,
    ) -> None:
        self.gateway = gateway
        self.paths = paths
        self.routes = routes
        self.limits = limits
        self.inject = inject
        self.resume = resume and inject
        self.door = door
        self.cors = cors
        self.aliases = aliases or Aliases()
        self.refusals: dict[str, int] = {}
        """Requests refused before the cluster heard of them, by error code."""
        self._chance = random.Random()

    # While a request is being read.

    def check(self, inbound: Inbound, head_bytes: int) -> ApiError | None:
        """Look at a head: is it worth reading the body? `head_bytes`: at least as long as the head."""
        limits = self.limits
        if len(inbound.head) > limits.headers_max:
            return wire.head_too_large("headers_max", limits.headers_max)
        if head_bytes > limits.head_bytes_max and _length(inbound) > limits.head_bytes_max:
            return wire.head_too_large("head_bytes_max", limits.head_bytes_max)
        read = inbound.read
        unusual = not _UNUSUAL.isdisjoint(read)
        if unusual and self.cors is not None and b"origin" in read:
            inbound.reply_lines = self.cors.lines(read[b"origin"])
        declared = read.get(b"content-length")
        if declared is not None and len(declared) > 4 and int(declared) > limits.body_bytes_max:
            return wire.body_too_large(limits.body_bytes_max)
        if unusual:
            coding = read.get(b"content-encoding", b"identity").lower()
            if coding in GZIP:
                inbound.inflater = Inflater(limits.body_bytes_max)
            elif coding != b"identity":
                what = f"Content-Encoding {wire.quoted(coding)}"
                return wire.unsupported_media(what, "the body as it is, or as gzip")
            if b"expect" in read:
                return self._check_expecting(inbound)
        if self.door is not None and (declared is None or len(declared) > STRANGER_DIGITS):
            return self._check_stranger(inbound)
        return None

    def _check_expecting(self, inbound: Inbound) -> ApiError | None:
        """The client waits for our word before it sends the body: say no now where path or key are wrong."""
        if inbound.read[b"expect"].lower() != b"100-continue":
            return ApiError(417, "invalid_request_error", "expectation_failed", "Only Expect: 100-continue is known.")
        if local.is_local(inbound.target):
            return None
        found = self.paths.find(inbound.method, inbound.target)
        return found if isinstance(found, ApiError) else self._check_stranger(inbound)

    def _check_stranger(self, inbound: Inbound) -> ApiError | None:
        """A long body, or one of unknown length, is read only for callers that we know."""
        if self.door is None or isinstance(self.paths.find(inbound.method, inbound.target), ApiError):
            return None
        caller = self.door.identify(inbound.read)
        return caller if isinstance(caller, ApiError) else None

    def take(self, inbound: Inbound, size: int) -> ApiError | None:
        """Count body bytes as they come in."""
        error = self.gateway.bodies.take(inbound, size)
        if inbound.counted_bytes > self.limits.body_bytes_max:
            return wire.body_too_large(self.limits.body_bytes_max)
        return error

    # Once it is whole.

    def serve(self, client: "ClientConnection", inbound: Inbound) -> None:
        """Answer a request from here, or hand it to the cluster. Never raises for anything that a client sends."""
        if inbound.error is not None:
            self._refuse(client, inbound, inbound.error)
            return
        route = self.paths.find(inbound.method, inbound.target)
        if isinstance(route, ApiError):
            self._serve_here(client, inbound, route)
            return
        if self.gateway.draining:
            self._refuse(client, inbound, local.draining(), route.anthropic)
            return
        door = self.door
        caller = door.identify(inbound.read) if door is not None else None
        if isinstance(caller, ApiError):
            self._refuse(client, inbound, caller, route.anthropic, route.template)
            return
        parts = inbound.body
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        inbound.body = []
        read = inbound.read
        wishes = not _WISHES.isdisjoint(read)
        slo = limit_ms = None
        try:
            scanned = scan(route, body, read.get(b"content-type", b""))
            asked, meant_for = scanned.model, ""
            fallbacks: tuple[str, ...] = ()
            if asked in self.aliases:
                body, scanned, meant_for = self._behind_alias(route, inbound, body, scanned)
                fallbacks = tuple(name for name in self.aliases.fallbacks(asked) if name != scanned.model)
            if wishes:
                slo = None if _SLO_HEADERS.isdisjoint(read) else _slo(read)
                limit_ms = _milliseconds(read, b"x-request-timeout-ms")
        except BadRequest as refusal:
            self._refuse(client, inbound, refusal.error, route.anthropic, route.template, caller)
            return
        cut_usage = False
        if self.inject and scanned.stream:
            spliced = with_usage(route, scanned, body)
            if spliced is not None:
                body, cut_usage = spliced, True
        contract = contract_of(route, scanned) if self.resume and scanned.stream else None
        request = Request(
            id=self._id(read.get(b"x-request-id")),
            model=scanned.model,
            path=route.template,
            generates=route.generates,
            stream=scanned.stream,
            size=scanned.size,
            blocks=scanned.blocks,
            hashed_bytes=scanned.hashed_bytes,
            max_tokens=scanned.max_tokens,
            choices=scanned.choices,
            route=self._route_class(route.template, scanned.model, inbound),
            session=(_session(read) if wishes else "") or scanned.session,
            slo=slo,
            limit_s=None if limit_ms is None else limit_ms / 1e3,
            fallbacks=fallbacks,
            meant_for=meant_for,
        )
        if door is not None and caller is not None:
            error = door.admit(caller, request, inbound, asked)
            if error is not None:
                self._refuse(client, inbound, error, route.anthropic, route.template, caller)
                return
        exchange = Exchange(self.gateway, client, inbound, route, request, body, cut_usage, contract)
        client.exchange = exchange
        brain = self.gateway.brain
        brain.requests[request.id] = exchange
        brain.submit(Arrived(request))

    def _behind_alias(self, route: Route, inbound: Inbound, body: bytes, scanned: Scan) -> tuple[bytes, Scan, str]:
        """The body with a model that the alias stands for, read again; as it was where none of them is served. And the
        model that it was meant for, where only a fallback is served."""
        session = _session(inbound.read) or scanned.session
        draw = draw_of(session) if session else self._chance.random()
        served, meant_for = self.gateway.cluster.models(), ""
        model = self.aliases.choose(scanned.model, draw, served)
        if model is None and (instead := self.aliases.instead(scanned.model, served)) is not None:
            model, meant_for = instead
        if model is None or model == scanned.model:
            return body, scanned, meant_for
        media = inbound.read.get(b"content-type", b"")
        body = renamed(body, scanned.model, model, media[:10].lower() == b"multipart/")
        return body, scan(route, body, media), meant_for

    def _serve_here(self, client: "ClientConnection", inbound: Inbound, otherwise: ApiError) -> None:
        """Answer what needs no instance: preflights, and our own paths; all else with the error."""
        if inbound.method == b"OPTIONS" and self.cors is not None:
            lines = self.cors.preflight(inbound.read)
            if lines is not None:
                self.gateway.bodies.release(inbound)
                client.answer(inbound, 204, lines, b"")
                return
        if not local.is_local(inbound.target):
            self._refuse(client, inbound, otherwise)
            return
        sees = _anything
        if self.door is not None and local.needs_key(inbound):
            caller = self.door.identify(inbound.read)
            if isinstance(caller, ApiError):
                self._refuse(client, inbound, caller)
                return
            sees = partial(self.door.sees, caller)
        local.answer(self.gateway, client, inbound, sees)

    def _route_class(self, path: str, model: str, inbound: Inbound) -> str:
        if not self.routes.rules and b"x-isochrone-route" not in inbound.read:
            return DEFAULT_ROUTE
        return self.routes.of(path, model, inbound.header)

    def _id(self, asked: bytes | None) -> str:
        """The client's own id where it can be trusted in logs and headers and is not in use; else one of ours."""
        if asked is not None and _sane_id(asked):
            text = asked.decode()
            if not self.gateway.brain.knows(text) and (self.door is None or text not in self.door.quotas):
                return text
        return f"{self._chance.getrandbits(64):016x}"

    def _refuse(
        self,
        client: "ClientConnection",
        inbound: Inbound,
        error: ApiError,
        anthropic: bool = False,
        path: str = "other",
        caller: Caller | None = None,
    ) -> None:
        """Answer with an error that the cluster never hears of; it is counted and recorded all the same."""
        self.gateway.bodies.release(inbound)
        self.refusals[error.code] = self.refusals.get(error.code, 0) + 1
        request = self._id(inbound.read.get(b"x-request-id"))
        tenant, key = (ANONYMOUS, "") if caller is None else (caller.tenant, caller.key)
        record = refusal(request, self.gateway.brain.now, path, tenant, key, error.code, error.status)
        about = b"x-isochrone-request-id: %b\r\nx-isochrone-attempts: 0\r\n" % request.encode()
        if error.status == 405:
            about += b"allow: POST\r\n"
        elif error.status == 401:
            about += b"www-authenticate: Bearer\r\n"
        client.refuse(inbound, error, anthropic, about)
        for sink in self.gateway.records:
            sink(record)


def refusal(request: str, now: Instant, path: str, tenant: str, key: str, code: str, status: int) -> Decision:
    """The record of a request that the cluster never hears of."""
    return Decision(
        request=request, model="", path=path, tenant=tenant, key=key, route="default", stream=False, policy="",
        arrived_at=now, prompt_tokens_estimate=0, ended_at=now, outcome="refused", reason=code, status=status,
    )  # fmt: skip


def _anything(model: str) -> bool:
    """Without keys everybody sees every model."""
    return True


def _length(inbound: Inbound) -> int:
    return len(inbound.target) + sum(len(name) + len(value) + 4 for name, value in inbound.head)


def _session(read: dict[bytes, bytes]) -> str:
    value = read.get(b"x-isochrone-session") or read.get(b"x-session-id")
    return "" if value is None else value[:SESSION_CHARS_MAX].decode("latin-1")


def _slo(read: dict[bytes, bytes]) -> Slo:
    """Objectives from headers. Raises BadRequest that names the header at fault."""
    ttft_ms, tpot_ms = _milliseconds(read, b"x-slo-ttft-ms"), _milliseconds(read, b"x-slo-tpot-ms")
    asked = read.get(b"x-isochrone-sheddable", b"false").lower()
    if asked not in _TRUTH:
        raise BadRequest(_bad_header("x-isochrone-sheddable", asked, "true or false"))
    return Slo(
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        sheddable=_TRUTH[asked],
    )


def _milliseconds(read: dict[bytes, bytes], name: bytes) -> float | None:
    value = read.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise BadRequest(_bad_header(name.decode(), value, "a positive number of milliseconds"))
    return number


def _bad_header(name: str, value: bytes, wanted: str) -> ApiError:
    return wire.bad_request("invalid_header", f"The header {name} is {wire.quoted(value)}; it must be {wanted}.", name)
