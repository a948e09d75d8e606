"""Tokens of an OIDC issuer (JWT), as an alternative to keys.

A token is checked once, with the issuer's public keys: signature, issuer, audience, times. The verdict is remembered
until the token expires, by the token's hash, so that the next request costs a dict look-up. The issuer's keys are read
at the start and again every few minutes, and when a token names a key that is not known: not more often than every
REREAD_S_MIN, since anybody can send such a token.

Only signatures with public keys count: `none` and the shared-secret kinds, by which a public key could be used as a
secret, are never accepted.
"""

import asyncio
import logging
from typing import Any

import jwt

from isochrone.access.keys import CREDENTIAL_BYTES_MAX
from isochrone.access.tenants import Tenants
from isochrone.config.driver import TokenPlan
from isochrone.gateway import clock
from isochrone.gateway.doorkeeper import Identity, wrong_key
from isochrone.gateway.jwks import JwksError, read_jwks
from isochrone.nouns.errors import ApiError

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
WRONG_S = 10
"""How long a refusal is remembered: a key that was not known may be by then."""
REREAD_S_MIN = 10.0
"""Shortest time between two readings of the issuer's keys."""
RETRY_AFTER_S = 5

log = logging.getLogger("isochrone.oidc")


class TokenVerifier:
    """Says on whose behalf a token speaks. A new token costs some 100 us, a known one well under 1."""

    def __init__(self, plan: TokenPlan, tenants: Tenants) -> None:
        self.plan = plan
        self.tenants = tenants
        self._keys: dict[str | None, jwt.PyJWK] = {}
        """By key id."""
        self._verdicts: dict[bytes, tuple[Identity | ApiError, float]] = {}
        """Hash of a token -> what it is worth, and until when (seconds since 1970). At most `verdicts_max`."""
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the issuer's keys, and follow them from now on. JwksError only for a file that cannot be used: an issuer
        that does not answer yet is asked again."""
        try:
            await self._read()
        except JwksError as error:
            if (self.plan.jwks or "").startswith("file:"):
                raise
            log.warning("keys of %s: %s; tokens are refused until they can be read", self.plan.issuer, error)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="issuer's keys")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def identify(self, digest: bytes, token: bytes) -> Identity | ApiError:
        """Whom the token stands for, or the error to answer with."""
        now_s = clock.wall_s()
        known = self._verdicts.get(digest)
        if known is not None and now_s < known[1]:
            return known[0]
        if not self._keys:
            self._wanted.set()
            return no_keys_yet()
        verdict, until_s = self._check(token, now_s)
        self._verdicts.pop(digest, None)
        if len(self._verdicts) >= self.plan.verdicts_max:
            del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[digest] = verdict, until_s
        return verdict

    def _check(self, token: bytes, now_s: float) -> tuple[Identity | ApiError, float]:
        assert len(token) <= CREDENTIAL_BYTES_MAX
        try:
            name = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(name)
            if name is None and len(self._keys) == 1:
                key = next(iter(self._keys.values()))
            if key is None:
                self._wanted.set()
                return wrong_key(), now_s + WRONG_S
            if key.algorithm_name not in ALGORITHMS:
                return wrong_key(), now_s + WRONG_S
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self.plan.audience,
                issuer=self.plan.issuer,
                leeway=self.plan.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):  # the last three: odd JSON of strangers
            return wrong_key(), now_s + WRONG_S
        return self._identity(claims), float(claims["exp"]) + self.plan.leeway_s

    def _identity(self, claims: dict[str, Any]) -> Identity | ApiError:
        """The tenant that the claim names, if it is one of ours; a token without the claim may have one by default."""
        named = claims.get(self.plan.tenant_claim)
        tenant = self.plan.tenant if named is None else named
        if not isinstance(tenant, str) or (named is not None and named not in self.tenants):
            return no_tenant()
        return Identity(tenant, "jwt")

    async def _read(self) -> None:
        keys = await asyncio.to_thread(read_jwks, self.plan.issuer, self.plan.jwks)
        if keys.keys() != self._keys.keys():
            self._verdicts.clear()  # an issuer takes a key back by leaving it out
        self._keys = keys

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(min(REREAD_S_MIN, self.plan.refresh_s))
            try:
                async with asyncio.timeout(max(0.0, self.plan.refresh_s - REREAD_S_MIN)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self._read()
            except JwksError as error:
                log.warning("keys of %s: %s; the known ones stay in force", self.plan.issuer, error)


def no_tenant() -> ApiError:
    """403: a good token of nobody that we know."""
    return ApiError(
        403, "invalid_request_error", "unknown_tenant", "The token is valid, but names no tenant of this gateway."
    )


def no_keys_yet() -> ApiError:
    """503: tokens cannot be checked."""
    return ApiError(
        503,
        "service_unavailable",
        "issuer_unavailable",
        f"Tokens cannot be checked now: the issuer's keys are not known yet. Try again in {RETRY_AFTER_S} s.",
        None,
        RETRY_AFTER_S,
    )
