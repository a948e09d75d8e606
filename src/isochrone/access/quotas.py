"""What tenants may use: requests and tokens a minute, requests at once. Set aside at admission, settled at the end.

Nothing is booked only when it is over: two hundred requests that come in the same instant would all find the bucket
full. A request sets aside its prompt (estimated) and its output (max_tokens, or what such answers are like), and when
it ends gives back what it did not use or is charged for what it used beyond. Each request has one reservation, which
its end removes, however it ends.
"""

import msgspec

from isochrone.access.bucket import Bucket
from isochrone.access.tenants import Tenant, Tenants
from isochrone.nouns.decision import Decision
from isochrone.nouns.errors import ApiError
from isochrone.nouns.instant import SECOND, Instant

NEVER_SERVED = ("refused", "")
"""Outcomes of requests that no instance was asked for: they cost nothing, not even the request."""


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """What one request has set aside."""

    account: "Account"
    tokens: int


class Account:
    """What one tenant has used and set aside."""

    __slots__ = ("_at_once", "requests", "reserved_tokens", "running", "tenant", "tokens")

    def __init__(self, tenant: Tenant, now: Instant) -> None:
        self.running = 0
        """Requests admitted and not over."""
        self.reserved_tokens = 0
        """Set aside by them."""
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.change(tenant, now)

    def change(self, tenant: Tenant, now: Instant) -> None:
        """New limits; what runs goes on, what was used counts."""
        self.tenant = tenant
        self.requests = _changed(self.requests, tenant.requests_per_minute, now)
        self.tokens = _changed(self.tokens, tenant.tokens_per_minute, now)
        self._at_once = tenant.concurrent_requests

    def admit(self, now: Instant, prompt_tokens: int, output_tokens: int) -> Reservation | ApiError:
        """Set aside what the request needs, or say which limit is reached and how long to wait."""
        requests, tokens = self.requests, self.tokens
        most = self._at_once
        if most is not None and self.running >= most:
            return too_many_at_once(self.tenant.name, most)
        if requests is not None and not requests.offers(now, 1):
            return rate_limited(self.tenant.name, "requests", requests.limit, 1, requests.wait_ns(1))
        needed = 0
        if tokens is not None:
            if prompt_tokens > tokens.limit:
                return too_large(self.tenant.name, tokens.limit, prompt_tokens)
            # A bound on the output above the limit is common (a client's default) and says little: such a request
            # takes the whole bucket, so that it runs alone, rather than never.
            needed = min(prompt_tokens + output_tokens, tokens.limit)
            if not tokens.offers(now, needed):
                return rate_limited(self.tenant.name, "tokens", tokens.limit, needed, tokens.wait_ns(needed))
            tokens.take(needed)
            self.reserved_tokens += needed
        if requests is not None:
            requests.take(1)
        self.running += 1
        return Reservation(self, needed)

    def settle(self, reservation: Reservation, used_tokens: int, served: bool) -> None:
        """The request is over: give back what it did not use. `served` False: the request does not count either."""
        self.running -= 1
        self.reserved_tokens -= reservation.tokens
        if self.tokens is not None:
            self.tokens.take(used_tokens - reservation.tokens)
        if not served and self.requests is not None:
            self.requests.take(-1)

    def lines(self, now: Instant) -> bytes:
        """Header lines that tell a client where it stands, named as OpenAI names them; nothing where no limit is."""
        lines = b""
        if self.requests is not None:
            lines = _REQUESTS % self.requests.standing(now)
        if self.tokens is not None:
            lines += _TOKENS % self.tokens.standing(now)
        return lines


_REQUESTS, _TOKENS = (
    b"x-ratelimit-limit-%b: %%d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%b\r\n" % (name, name, name)
    for name in (b"requests", b"tokens")
)


def _changed(bucket: Bucket | None, limit: int | None, now: Instant) -> Bucket | None:
    if limit is None:
        return None
    if bucket is None:
        return Bucket(limit, now)
    bucket.change(limit, now)
    return bucket


class Quotas:
    """The accounts of all tenants, and what each open request has set aside."""

    def __init__(self, tenants: Tenants) -> None:
        self.tenants = tenants
        self.accounts: dict[str, Account] = {}
        """By tenant; made at its first request. Tenants are named by keys and configuration, never by a client."""
        self._reservations: dict[str, Reservation] = {}
        """By request: at most one for each open request of the gateway."""

    def account(self, tenant: str, now: Instant) -> Account:
        """The tenant's account."""
        account = self.accounts.get(tenant)
        if account is None:
            account = self.accounts[tenant] = Account(self.tenants.of(tenant), now)
        return account

    def __contains__(self, request: str) -> bool:
        return request in self._reservations

    def __len__(self) -> int:
        return len(self._reservations)

    def admit(
        self, now: Instant, account: Account, request: str, prompt_tokens: int, output_tokens: int
    ) -> ApiError | None:  # fmt: skip
        """Let a request in, which `settle` ends; or say why not."""
        granted = account.admit(now, prompt_tokens, output_tokens)
        if isinstance(granted, ApiError):
            return granted
        self._reservations[request] = granted
        return None

    def settle(self, decision: Decision) -> None:
        """A request is over, with a record. One that was never admitted is passed over."""
        reservation = self._reservations.pop(decision.request, None)
        if reservation is not None:
            served = decision.outcome not in NEVER_SERVED and bool(decision.tries)
            used = used_tokens(decision) if served else 0
            reservation.account.settle(reservation, used, served)

    def forget(self, request: str) -> None:
        """A request is over of which there is no record: it costs nothing."""
        reservation = self._reservations.pop(request, None)
        if reservation is not None:
            reservation.account.settle(reservation, 0, False)

    def configure(self, tenants: Tenants, now: Instant) -> None:
        """New limits, from the next request on."""
        self.tenants = tenants
        for name, account in self.accounts.items():
            account.change(tenants.of(name), now)


def used_tokens(decision: Decision) -> int:
    """Prompt and output tokens that a request is charged for.

    What the engine counted, else what we estimated and counted ourselves. A request that an engine turned away, or that
    failed before its first output, costs nothing; one that broke off or whose client left costs its prompt and what was
    sent.
    """
    prompt, output = decision.prompt_tokens, decision.output_tokens or 0
    if decision.outcome == "rejected" or (decision.outcome not in ("done", "client_left") and not output):
        return 0
    if prompt is None:
        prompt = decision.prompt_tokens_estimate
        if decision.outcome == "done" and not decision.stream:  # no usage, and nothing that we could count
            output = round(decision.output_tokens_estimate or 0.0)
    return prompt + output


def rate_limited(tenant: str, what: str, limit: int, asked: int, wait_ns: int) -> ApiError:
    """429 that names the limit and says when a retry makes sense."""
    wait_s = max(1, -(-wait_ns // SECOND))
    message = (
        f"Rate limit reached for {tenant!r}: {limit} {what} a minute, and this request needs {asked}. "
        f"Try again in {wait_s} s."
    )
    return ApiError(429, what, "rate_limit_exceeded", message, None, wait_s)


def too_many_at_once(tenant: str, limit: int) -> ApiError:
    """429: as many requests of the tenant run as may."""
    message = f"{tenant!r} has its limit of {limit} requests at once under way. Try again when one of them is over."
    return ApiError(429, "requests", "concurrency_limit_exceeded", message, None, 1)


def too_large(tenant: str, limit: int, prompt_tokens: int) -> ApiError:
    """429 without Retry-After: no waiting makes this one fit."""
    message = (
        f"The prompt of about {prompt_tokens} tokens is larger than what {tenant!r} may use in a minute: {limit}. "
        "Shorten the prompt."
    )
    return ApiError(429, "tokens", "rate_limit_exceeded", message)
