"""Who may call the admin API, and what a body must look like. Errors name the field, the value and the remedy."""

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from isochrone.config.problems import explain
from isochrone.gateway.names import literal, lookup, named, permitted

BODY_BYTES_MAX = 64 * 1024
"""A longer body is refused with 413."""
LOOKUP_S_MAX = 2.0
"""Longest wait for the addresses of an instance that is added."""

Body = TypeVar("Body", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]


class AdminError(Exception):
    """An answer that is an error, in OpenAI's shape."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    def response(self) -> Response:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return json({"error": error}, self.status)


def json(value: object, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def is_loopback(host: str) -> bool:
    """True for `localhost` and loopback addresses."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def guarded(endpoint: Endpoint, loopback_only: bool, key: str | None = None) -> Endpoint:
    """The endpoint behind the checks of key and web pages, with AdminError turned into its answer."""

    async def call(request: Request) -> Response:
        try:
            _refuse_pages(request, loopback_only)
            if key is not None:
                _check_key(request, key)
            return await endpoint(request)
        except AdminError as error:
            return error.response()

    return call


def _refuse_pages(request: Request, loopback_only: bool) -> None:
    """A page in an operator's browser must not steer the gateway.

    Browsers send `Origin` with every request of a page that could change something: it must be ours. A page that has
    made its own name resolve to us (DNS rebinding) has that name in `Host`: on loopback only loopback names pass.
    """
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise AdminError(403, "foreign_origin", f"Requests of the page {origin[:200]!r} are refused.")
    if loopback_only and not is_loopback(urlsplit("//" + host).hostname or ""):
        raise AdminError(403, "foreign_host", f"Ask for localhost or 127.0.0.1, not {host[:200]!r}.")


def _check_key(request: Request, key: str) -> None:
    shown = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(shown.encode(), key.encode()):
        raise AdminError(401, "invalid_admin_key", "Show the admin key: 'Authorization: Bearer KEY'.")


async def body_of(request: Request, kind: type[Body]) -> Body:
    """The request's JSON body, checked."""
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > BODY_BYTES_MAX:
            raise AdminError(413, "body_too_large", f"The body is longer than {BODY_BYTES_MAX} bytes.")
    try:
        return kind.model_validate(msgspec.json.decode(raw or b"{}"))
    except msgspec.DecodeError as error:
        raise AdminError(400, "invalid_json", f"The body is not JSON: {error}.") from None
    except ValidationError as error:
        problems = explain(error, kind, {})
        param = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise AdminError(400, "bad_value", "; ".join(problems), param or None) from None


async def check_target(host: str, allow: tuple[str, ...]) -> None:
    """May an instance of this host be added over the API? Keeps a caller from aiming the gateway at other services.

    A name that nobody knows yet may be added: its addresses are checked again whenever they are looked up.
    """
    addresses = [host]
    if literal(host) is None:
        try:
            async with asyncio.timeout(LOOKUP_S_MAX):
                addresses = await lookup(host, 0)
        except OSError:  # TimeoutError too
            addresses = []
    if addresses and not any(permitted(host, address, allow) for address in addresses):
        rule = f"admin.allow = {', '.join(allow)}" if allow else "no link-local address, no name of a loopback address"
        raise AdminError(403, "host_refused", f"url: no instance may be at {host!r} ({rule}).", "url")
    if not addresses and not named(host, allow):
        raise AdminError(403, "host_refused", f"url: {host!r} is not in admin.allow ({', '.join(allow)}).", "url")
