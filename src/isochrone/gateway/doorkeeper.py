"""Who is asking, and may they: keys and tokens to tenants, tenants to what they may use.

    caller = door.identify(headers)          # from a key, a token, or nobody; or 401
    error = door.admit(caller, request, inbound)   # 403, 404 or 429; else set aside what the request needs
    door.record(decision)                    # a sink of records: settles it

With keys on, an identified request costs some 2 us here.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from isochrone.access.keys import KeyRing, credential_in, digest_of
from isochrone.access.quotas import Account, Quotas
from isochrone.access.tenants import ANONYMOUS, Tenants
from isochrone.config.driver import DEFAULT_ROUTE
from isochrone.gateway import clock
from isochrone.gateway.inbound import Inbound
from isochrone.nouns import errors
from isochrone.nouns.decision import Decision
from isochrone.nouns.errors import ApiError
from isochrone.nouns.request import Request


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who sent a request."""

    account: Account
    key: str = ""
    """Public id of the key; empty for nobody."""

    @property
    def tenant(self) -> str:
        return self.account.tenant.name


class Identity(msgspec.Struct, frozen=True, gc=False):
    """What a token says, once it is checked."""

    tenant: str
    key: str
    """Stands for the token in records and in the usage table."""


class Verifier(Protocol):
    """Checks tokens that are not keys: `isochrone.gateway.oidc.TokenVerifier`."""

    def identify(self, digest: bytes, token: bytes) -> Identity | ApiError: ...


class Menu(Protocol):
    """What there is: `isochrone.cluster.Cluster`, or what a relay was told of it."""

    def models(self) -> dict[str, int | None]: ...

    def can_serve(self) -> bool: ...


Estimate = Callable[[Request], tuple[int, int]]
"""Prompt tokens of a request, and output tokens at most."""


class Doorkeeper:
    """Stands between reading a request and handing it to the cluster."""

    def __init__(
        self,
        menu: Menu,
        tenants: Tenants,
        keys_on: bool = True,
        anonymous: bool = False,
        estimate: Estimate | None = None,
    ) -> None:
        """`estimate`: for quotas; None: they are kept in another process, which calls `reserve` there."""
        self.ring = KeyRing()
        self.quotas = Quotas(tenants)
        self.verifier: Verifier | None = None
        self.keys_on = keys_on
        """False: credentials are not looked at and pass to the engine; everybody is anonymous."""
        self._anonymous = anonymous or not keys_on
        self._menu = menu
        self._estimate = estimate

    def configure(self, tenants: Tenants, anonymous: bool) -> None:
        """Other limits, also for accounts that are open."""
        self.quotas.configure(tenants, clock.now())
        self._anonymous = anonymous or not self.keys_on

    def identify(self, read: Mapping[bytes, bytes]) -> Caller | ApiError:
        """Who shows these headers. A credential that is shown must be right, even where none is needed."""
        token = credential_in(read) if self.keys_on else None
        if token is None:
            return Caller(self._account(ANONYMOUS)) if self._anonymous else no_key()
        digest = digest_of(token)
        key = self.ring.find(digest)
        if key is not None:
            if key.expires_s is not None and key.expires_s <= clock.wall_s():
                return wrong_key()
            return Caller(self._account(key.tenant), key.id)
        if self.verifier is None or token.count(b".") != 2:
            return wrong_key()
        found = self.verifier.identify(digest, token)
        if isinstance(found, ApiError):
            return found
        return Caller(self._account(found.tenant), found.key)

    def sees(self, caller: Caller, model: str) -> bool:
        """Whether the caller may use, and hear of, the model."""
        return not caller.account.tenant.models or self.quotas.tenants.allows(caller.tenant, model)

    def admit(self, caller: Caller, request: Request, inbound: Inbound, asked: str) -> ApiError | None:
        """Let the request in as the caller's and set aside what it needs; or the 403, 404 or 429 to answer.

        `asked`: the model that the client named; who may use an alias may use what stands behind it.
        """
        tenant = caller.account.tenant
        request.tenant, request.key, request.priority = tenant.name, caller.key, tenant.priority
        if tenant.route is not None and request.route == DEFAULT_ROUTE:
            request.route = tenant.route
        error = self._check_model(caller, request.model, asked) if tenant.models else None
        if error is not None or self._estimate is None:
            return error
        error, lines = self._reserve(caller.account, request, self._estimate)
        if lines:
            inbound.reply_lines += lines
        return error

    def reserve(self, request: Request) -> tuple[ApiError | None, bytes]:
        """Set aside what a request needs that another process has let in; header lines that say what is left."""
        assert self._estimate is not None
        return self._reserve(self._account(request.tenant), request, self._estimate)

    def _reserve(self, account: Account, request: Request, estimate: Estimate) -> tuple[ApiError | None, bytes]:
        prompt_tokens = output_tokens = 0
        if account.tokens is not None:
            prompt_tokens, output_tokens = estimate(request)
        now = clock.now()
        error = self.quotas.admit(now, account, request.id, prompt_tokens, output_tokens)
        limited = account.tokens is not None or account.requests is not None
        return error, account.lines(now) if limited else b""

    def record(self, decision: Decision) -> None:
        """A request is over."""
        self.quotas.settle(decision)

    def forget(self, request: str) -> None:
        """A request is over without a record."""
        self.quotas.forget(request)

    def _account(self, tenant: str) -> Account:
        return self.quotas.accounts.get(tenant) or self.quotas.account(tenant, clock.now())

    def _check_model(self, caller: Caller, model: str, asked: str) -> ApiError | None:
        """An error names the asked model and those that the tenant may use, never another's."""
        if asked and not self.sees(caller, asked):
            return model_not_allowed(asked)
        served = self._menu.models()
        if model in served:
            return None
        known = [name for name in served if self.sees(caller, name)]
        if model:
            return errors.unknown_model(model, known) if served else None
        return None if len(served) == 1 and known else errors.model_required(known)


def no_key() -> ApiError:
    """401: nothing was shown."""
    return ApiError(
        401,
        "invalid_request_error",
        "missing_api_key",
        "An API key is needed. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
    )


def wrong_key() -> ApiError:
    """401, the same for wrong, expired and revoked keys; it repeats nothing of what was sent."""
    return ApiError(401, "invalid_request_error", "invalid_api_key", "The API key is not valid.")


def model_not_allowed(model: str) -> ApiError:
    """403 that names the asked model alone."""
    return ApiError(
        403,
        "invalid_request_error",
        "model_not_allowed",
        f"This API key may not use the model {model[:200]!r}.",
        "model",
    )
