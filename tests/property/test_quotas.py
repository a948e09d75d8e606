"""Token buckets without rounding; reservations that return to zero however requests end; and no way round a limit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.access.bucket import MINUTE, Bucket, duration
from isochrone.access.quotas import Quotas, used_tokens
from isochrone.access.tenants import Tenant, Tenants
from isochrone.nouns.decision import Decision, Try
from isochrone.nouns.errors import ApiError
from isochrone.nouns.instant import SECOND

LIMIT = st.integers(1, 10**9)
SPAN = st.integers(0, 10 * MINUTE)
OUTCOMES = ("done", "refused", "failed", "rejected", "client_left", "forgotten")


@given(LIMIT, st.lists(SPAN, max_size=30), st.integers(0, 10**9))
def test_many_small_refills_are_one_large_one(limit: int, spans: list[int], used: int) -> None:
    often, once = Bucket(limit, 0), Bucket(limit, 0)
    now = 0
    for bucket in (often, once):
        bucket.take(used)
    for span in spans:
        now += span
        often.refill(now)
    once.refill(now)
    assert often.remaining == once.remaining
    assert often.reset_ns() == once.reset_ns()


@given(LIMIT, st.integers(1, 10**9), st.integers(0, 10**9))
def test_the_wait_is_exact(limit: int, used: int, wanted: int) -> None:
    """After the wait the wanted uses are there, one nanosecond before they are not."""
    wanted = min(wanted, limit)
    bucket = Bucket(limit, 0)
    bucket.take(used)
    wait = bucket.wait_ns(wanted)
    if wait:
        bucket.refill(wait - 1)
        assert not bucket.holds(wanted)
    bucket.refill(wait)
    assert bucket.holds(wanted)
    bucket.refill(wait + bucket.reset_ns())
    assert (bucket.remaining, bucket.reset_ns()) == (limit, 0)


@given(LIMIT, LIMIT, st.integers(0, 10**9), st.integers(0, 2 * MINUTE))
def test_another_limit_forgets_no_use(limit: int, other: int, used: int, later: int) -> None:
    bucket = Bucket(limit, 0)
    bucket.take(used)
    bucket.change(other, 0)
    assert bucket.remaining == max(0, other - used)
    bucket.refill(later)
    assert bucket.remaining <= other


def decision(name: str, outcome: str, tried: bool, prompt: int | None, output: int | None, stream: bool) -> Decision:
    return Decision(
        request=name, model="m", path="/", tenant="t", route="default", stream=stream, policy="p", arrived_at=0,
        prompt_tokens_estimate=7, output_tokens_estimate=11.0, tries=[Try("i", 0)] if tried else [], outcome=outcome,
        prompt_tokens=prompt, output_tokens=output,
    )  # fmt: skip


STEPS = st.lists(
    st.tuples(
        st.integers(0, 30 * SECOND),
        st.integers(1, 400),
        st.integers(0, 4000),
        st.sampled_from(OUTCOMES),
        st.booleans(),
        st.none() | st.integers(0, 500),
        st.none() | st.integers(0, 500),
        st.booleans(),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(STEPS, st.none() | st.integers(1, 20), st.none() | st.integers(1, 2000), st.none() | st.integers(1, 4))
@settings(max_examples=200)
def test_reservations_return_to_zero(
    steps: list[tuple], requests: int | None, tokens: int | None, at_once: int | None
) -> None:
    """Any mix of arrivals and ends, in any order, over any limits; what was used is all that is missing at the end."""
    tenant = Tenant(
        name="t", requests_per_minute=requests, tokens_per_minute=tokens, concurrent_requests=at_once
    )  # fmt: skip
    quotas = Quotas(Tenants({"t": tenant}))
    account = quotas.account("t", 0)
    now = 0
    open_requests: list[Decision] = []

    def end(over: Decision) -> None:
        quotas.forget(over.request) if over.outcome == "forgotten" else quotas.settle(over)
        quotas.settle(over)  # late news of what is over changes nothing

    for number, (span, prompt, output, outcome, tried, real_prompt, real_output, stream, ends) in enumerate(steps):
        now += span
        name = f"r{number}"
        if quotas.admit(now, account, name, prompt, output) is None:
            open_requests.append(decision(name, outcome, tried, real_prompt, real_output, stream))
        assert account.running == len(open_requests) == len(quotas)
        assert at_once is None or account.running <= at_once
        for _ in range(min(ends, len(open_requests))):
            end(open_requests.pop(0))
    while open_requests:
        end(open_requests.pop())
    assert (account.running, account.reserved_tokens, len(quotas)) == (0, 0, 0)
    for bucket in (account.requests, account.tokens):
        if bucket is not None:
            bucket.refill(now + bucket.reset_ns())
            assert bucket.remaining == bucket.limit


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))))
def test_what_is_missing_is_what_was_used(requests: list[tuple[int, int, int, int]]) -> None:
    """In one instant, so that nothing is refilled: set aside, corrected, and exact to the token."""
    quotas = Quotas(Tenants({"t": Tenant(name="t", tokens_per_minute=100_000)}))
    account = quotas.account("t", 0)
    used = 0
    for number, (prompt, output, real_prompt, real_output) in enumerate(requests):
        assert quotas.admit(0, account, f"r{number}", prompt, output) is None
        quotas.settle(decision(f"r{number}", "done", True, real_prompt, real_output, True))
        used += real_prompt + real_output
    assert account.tokens is not None
    assert account.tokens.remaining == 100_000 - used


@given(st.lists(st.tuples(st.integers(0, SECOND), st.integers(1, 300)), min_size=1, max_size=200), st.integers(1, 1000))
def test_no_minute_gives_more_than_two_limits(asks: list[tuple[int, int]], limit: int) -> None:
    """A full bucket and what refills meanwhile: the most that any window of a minute can take, where estimates hold."""
    quotas = Quotas(Tenants({"t": Tenant(name="t", tokens_per_minute=limit)}))
    account = quotas.account("t", 0)
    now, taken = 0, []
    for number, (span, tokens) in enumerate(asks):
        now += span
        if quotas.admit(now, account, f"r{number}", 1, tokens - 1) is None:
            taken.append((now, min(tokens, limit)))
    for start, _ in taken:
        assert sum(tokens for at, tokens in taken if start <= at < start + MINUTE) <= 2 * limit


def test_q02_a_burst_stops_at_the_limit() -> None:
    """Q-02: 200 requests of 100 tokens in 50 ms against 1000 a minute."""
    quotas = Quotas(Tenants({"t": Tenant(name="t", tokens_per_minute=1000)}))
    account = quotas.account("t", 0)
    errors = [quotas.admit(n * SECOND // 4000, account, f"r{n}", 1, 99) for n in range(200)]
    assert errors.count(None) == 10
    refused = [error for error in errors if error is not None]
    assert {(error.status, error.type, error.code) for error in refused} == {(429, "tokens", "rate_limit_exceeded")}
    assert all(error.retry_after_s is not None and 1 <= error.retry_after_s <= 6 for error in refused)
    for n in range(10):
        quotas.settle(decision(f"r{n}", "failed", True, None, 0, True))
    assert account.tokens is not None
    assert account.tokens.remaining == 1000  # what failed is given back


def test_an_open_ended_bound_takes_the_whole_bucket_and_no_more() -> None:
    quotas = Quotas(Tenants({"t": Tenant(name="t", tokens_per_minute=1000)}))
    account = quotas.account("t", 0)
    assert quotas.admit(0, account, "a", 10, 10**18) is None
    error = quotas.admit(0, account, "b", 1, 1)
    assert isinstance(error, ApiError)
    quotas.settle(decision("a", "done", True, 10, 20, False))
    assert quotas.admit(0, account, "b", 1, 969) is None
    too_long = quotas.admit(0, account, "c", 1001, 0)
    assert too_long is not None
    assert (too_long.status, too_long.retry_after_s) == (429, None)


def test_debts_are_waited_for() -> None:
    """An answer that outgrew its estimate is charged in full."""
    quotas = Quotas(Tenants({"t": Tenant(name="t", tokens_per_minute=60)}))
    account = quotas.account("t", 0)
    assert quotas.admit(0, account, "a", 1, 1) is None
    quotas.settle(decision("a", "done", True, 60, 60, False))
    error = quotas.admit(0, account, "b", 1, 0)
    assert error is not None
    assert error.retry_after_s == 61
    assert quotas.admit(61 * SECOND, account, "b", 1, 0) is None


def test_what_is_charged() -> None:
    assert used_tokens(decision("a", "done", True, 5, 6, False)) == 11
    assert used_tokens(decision("a", "done", True, None, 6, True)) == 13  # counted by us
    assert used_tokens(decision("a", "done", True, None, None, False)) == 18  # estimated
    assert used_tokens(decision("a", "client_left", True, None, 3, True)) == 10
    assert used_tokens(decision("a", "failed", True, None, 3, True)) == 10
    assert used_tokens(decision("a", "failed", True, None, 0, True)) == 0
    assert used_tokens(decision("a", "rejected", True, None, None, False)) == 0


def test_new_limits_count_for_open_accounts() -> None:
    quotas = Quotas(Tenants({"t": Tenant(name="t", requests_per_minute=1)}))
    account = quotas.account("t", 0)
    assert quotas.admit(0, account, "a", 1, 1) is None
    assert quotas.admit(0, account, "b", 1, 1) is not None
    quotas.configure(Tenants({"t": Tenant(name="t", requests_per_minute=2)}), 0)
    assert quotas.admit(0, account, "b", 1, 1) is None
    quotas.configure(Tenants({"t": Tenant(name="t", concurrent_requests=2)}), 0)
    error = quotas.admit(0, account, "c", 1, 1)
    assert error is not None
    assert error.code == "concurrency_limit_exceeded"


def test_durations_read_as_openai_writes_them() -> None:
    assert [duration(n) for n in (0, 1, 20_000_000, SECOND, 59 * SECOND + 1, 90 * SECOND)] == [
        b"0ms", b"1ms", b"20ms", b"1s", b"1m0s", b"1m30s",
    ]  # fmt: skip
