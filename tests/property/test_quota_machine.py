"""Quotas against a plain sum: what is set aside, used and given back, in any order of arrivals and ends."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isochrone.access.bucket import MINUTE
from isochrone.access.quotas import Quotas, used_tokens
from isochrone.access.tenants import Tenant, Tenants
from isochrone.nouns.decision import Decision, Try
from isochrone.nouns.errors import ApiError
from isochrone.nouns.instant import SECOND

LIMITS = {"a": (5, 1000, 2), "b": (None, 300, None), "c": (3, None, 4), "d": (None, None, None)}
"""Tenant -> requests and tokens a minute, requests at once."""
MORE = {"a": (7, 400, 3), "b": (2, 600, None), "c": (3, None, 1), "d": (None, 100, 1)}
"""After a reload."""


def tenants(limits: dict[str, tuple[int | None, int | None, int | None]]) -> Tenants:
    return Tenants({
        name: Tenant(name=name, requests_per_minute=requests, tokens_per_minute=tokens, concurrent_requests=at_once)
        for name, (requests, tokens, at_once) in limits.items()
    })  # fmt: skip


class Account:
    """One tenant's, naively: levels as exact fractions of uses, refilled from the time of the last look."""

    def __init__(self, limits: tuple[int | None, int | None, int | None]) -> None:
        self.requests, self.tokens, self.at_once = limits
        self.at = 0
        self.level = {"requests": (self.requests or 0) * MINUTE, "tokens": (self.tokens or 0) * MINUTE}

    def look(self, now: int) -> None:
        for what, limit in (("requests", self.requests), ("tokens", self.tokens)):
            if limit is not None:
                self.level[what] = min(limit * MINUTE, self.level[what] + limit * (now - self.at))
        self.at = now

    def take(self, what: str, uses: int) -> None:
        limit = self.requests if what == "requests" else self.tokens
        if limit is not None:
            self.level[what] = min(limit * MINUTE, self.level[what] - uses * MINUTE)

    def reload(self, limits: tuple[int | None, int | None, int | None], now: int) -> None:
        """What was used and has not come back counts against the new limit; a limit that is new begins full."""
        self.look(now)
        for what, before, after in (("requests", self.requests, limits[0]), ("tokens", self.tokens, limits[1])):
            used = before * MINUTE - self.level[what] if before is not None else 0
            self.level[what] = (after or 0) * MINUTE - used
        self.requests, self.tokens, self.at_once = limits


class Book(RuleBasedStateMachine):
    """Quotas, and what they should say."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas = Quotas(tenants(LIMITS))
        self.naive = {name: Account(limits) for name, limits in LIMITS.items()}
        self.now = 0
        self.count = 0
        self.open: dict[str, tuple[str, int]] = {}
        """Request -> tenant, tokens set aside."""
        for name in LIMITS:
            self.quotas.account(name, 0)

    @rule(tenant=st.sampled_from("abcd"), prompt=st.integers(1, 500), output=st.integers(0, 800))
    def admit(self, tenant: str, prompt: int, output: int) -> None:
        self.count += 1
        name, account = f"r{self.count}", self.naive[tenant]
        account.look(self.now)
        needed = min(prompt + output, account.tokens) if account.tokens is not None else 0
        running = sum(one == tenant for one, _ in self.open.values())
        may = account.at_once is None or running < account.at_once
        may &= account.requests is None or account.level["requests"] >= MINUTE
        fits = account.tokens is None or prompt <= account.tokens
        may &= account.tokens is None or (fits and account.level["tokens"] >= needed * MINUTE)
        refused = self.quotas.admit(self.now, self.quotas.account(tenant, self.now), name, prompt, output)
        assert (refused is None) == may
        if refused is None:
            account.take("requests", 1)
            account.take("tokens", needed)
            self.open[name] = (tenant, needed)
        else:
            assert isinstance(refused, ApiError)
            assert refused.status == 429
            assert (refused.retry_after_s is None) == (not fits and refused.code == "rate_limit_exceeded")

    @precondition(lambda self: self.open)
    @rule(
        which=st.integers(0, 10**6),
        outcome=st.sampled_from(["done", "failed", "client_left", "rejected", "refused"]),
        tried=st.booleans(),
        prompt=st.none() | st.integers(0, 900),
        output=st.none() | st.integers(0, 900),
    )
    def settle(self, which: int, outcome: str, tried: bool, prompt: int | None, output: int | None) -> None:
        name = sorted(self.open)[which % len(self.open)]
        tenant, needed = self.open.pop(name)
        tried = tried and outcome != "refused"
        decision = Decision(
            request=name, model="m", path="/", tenant=tenant, route="default", stream=True, policy="p", arrived_at=0,
            prompt_tokens_estimate=7, tries=[Try("i", 0)] if tried else [], outcome=outcome, prompt_tokens=prompt,
            output_tokens=output,
        )  # fmt: skip
        account = self.naive[tenant]
        account.take("tokens", (used_tokens(decision) if tried else 0) - needed)
        if not tried:
            account.take("requests", -1)
        self.quotas.settle(decision)
        self.quotas.settle(decision)  # told again: nothing

    @rule(span=st.sampled_from([1, SECOND, 7 * SECOND, MINUTE]))
    def wait(self, span: int) -> None:
        self.now += span

    @rule(more=st.booleans())
    def reload(self, more: bool) -> None:
        limits = MORE if more else LIMITS
        settled = {name: account for name, account in self.naive.items() if not self._has_open(name)}
        if len(settled) < len(self.naive):
            return  # between requests only: what was set aside under one limit is given back to the same
        self.quotas.configure(tenants(limits), self.now)
        for name, account in self.naive.items():
            account.reload(limits[name], self.now)

    def _has_open(self, tenant: str) -> bool:
        return any(one == tenant for one, _ in self.open.values())

    @invariant()
    def levels_are_the_same(self) -> None:
        assert len(self.quotas) == len(self.open)
        for name, account in self.naive.items():
            real = self.quotas.account(name, self.now)
            account.look(self.now)
            assert real.running == sum(one == name for one, _ in self.open.values())
            assert real.reserved_tokens == sum(needed for one, needed in self.open.values() if one == name)
            for what, bucket in (("requests", real.requests), ("tokens", real.tokens)):
                if bucket is not None:
                    bucket.refill(self.now)
                    assert bucket.remaining == max(0, account.level[what] // MINUTE)


Book.TestCase.settings = settings(max_examples=100, stateful_step_count=40, derandomize=True, deadline=None)
TestBook = Book.TestCase
