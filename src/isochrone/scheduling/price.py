"""The equal-cost price of a request on an instance, in seconds.

The step model of a class says how long one engine step takes: a + b*(B + n) + k*K, plus q for each attention pair,
with B decoding requests, n prefill tokens and K tokens of KV read. From it, for a request with n prompt tokens of
which u are not cached on the instance, and o expected output tokens:

    over  = (a + k*K + b*B) / (chunk - B)      what the others' decoding costs for each prefilled token
    w     = u*(b + over) + q*u*(n - u/2)       own prefill work
    price = (Q + f*(w*(1 + W + w_f + ext) + o*(gap + R*(b + k*n)))) / weight + kv
            (with the rarer terms of `scheduling/adjust.py`: error, money)

Q: pending prefill, in seconds, with the progress of the head taken off. f = exp(level): how slow the instance is
against its class, 1 within what noise and misfit explain. W: requests waiting there, each delayed by w. w_f: a pool
that is full pays for each second of work through all later arrivals. ext: the delay that decoding requests suffer from
the prefill: IMPOSED_PLAIN for each of them; if the request itself may be shed, IMPOSED_SHEDDABLE for each, and its TTFT
objective times the shares of their TPOT slack that a second takes from them. o*gap: own decoding; a gap is
a step beside all R that run there now, those that still wait included (they will decode too: without them an instance
with a long line looks empty), times the measured stretch by prefill in between (`instances/stretch.py`).
o*R*(b + k*n): what each of the others' steps takes longer for it. kv: a soft price near full KV memory. Where no slot
is free, Q holds the wait for one.

The price ranks. `forecast` is what the price is not: unweighted seconds to the first and to the last token.

Until a pool has `samples_warm` samples the price is the least pending work (`cold`).

What an instance contributes is derived once, when something on it changes, into an immutable `Row`; a decision only
multiplies. Below `VECTOR_FROM` instances a plain loop is quicker than numpy, above it numpy; both give the same.
"""

from collections.abc import Sequence
from math import inf

import msgspec
import numpy as np

from isochrone.instances.gaps import Gaps
from isochrone.instances.table import Instance
from isochrone.nouns.instant import MILLISECOND, SECOND, Instant
from isochrone.nouns.settings import Settings
from isochrone.scheduling.lengths import OutputLengths

SLOTS_PER_WAITING = 8
WAITING_MIN = 2
"""One request for so many slots, and two more, may wait inside a full engine: they take the places of those that end in
the very next step, where requests sent from here would come some steps late: 1 % of tokens/s at saturation with steps
of 50 ms, several with the 10 ms of a small model on a busy host."""
VECTOR_FROM = 64
"""Instances from which numpy beats a loop."""
IMPOSED_PLAIN = 0.07
IMPOSED_SHEDDABLE = 0.1
"""Delay imposed on one decoding request for each second of prefill, in seconds that count."""
SLACK_FLOOR_S = 0.3
SLACK_MIN_S = 0.05
SLACK_AGE_NS = 100 * MILLISECOND
SLACK_QUANTILES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
OWED_TOKEN_S = 0.0005
"""Cold price of one output token still owed: a decode step of some 15 ms shared by some 30 requests."""


class Rare(msgspec.Struct, frozen=True, gc=False):
    """What few rows have; made in `scheduling/adjust.py`."""

    tries: float = 1.0
    """How often a request is expected to be sent until an attempt here succeeds; part of `factor`."""
    money: float = 0.0
    """Seconds that a second of the card is worth in money; part of `plain`, `sheddable` and `crowd_s`."""
    imposes: bool = True
    """False: delays of others were left out of the price."""
    full_step_s: float = 0.0
    """One decode step with this request and all that run there, its slowness included; for a cap on concurrency."""
    kv_s: float = 0.0
    """What one KV token of this request adds to that."""
    gaps: Gaps | None = None
    """Measured gaps by batch; for the same."""


COMMON = Rare()


class Row(msgspec.Struct, frozen=True, gc=False):
    """One instance's side of every price. Immutable, so that a decision record may keep it.

    One flat struct: its fields are read as fast as a tuple is unpacked, and it is made at a fifth of the time that a
    handful of small objects take.
    """

    id: str
    slot: int
    base_s: float
    """Pending prefill behind the head and the wait for a slot, over the weight, plus the KV price."""
    share: float
    """1 / weight."""
    head_due: Instant
    """When the attempt at the head of the line should have its first token; 0: nobody waits."""
    factor: float
    """Level factor / weight: what own terms are multiplied by."""
    token_s: float
    pair_s: float
    plain: float
    """1 + W + w_f + ext for traffic that may not be shed."""
    sheddable: float
    """The same for sheddable traffic, without the slack term."""
    slack_per_s: float
    step_s: float
    """One decode step with this request in the batch of now."""
    gap_s: float
    """Between two tokens of this request, with all that run there and prefill in between; without the level."""
    crowd_s: float
    """gap_s plus what one more request adds to the others' steps."""
    crowd_kv_s: float
    """What each KV token of one more request adds to the others' steps."""
    cold_s: float
    """Pending prefill behind the head and output owed, over the weight, plus the KV price."""
    # What the above was derived from, for policies that count, late binding and explanations.
    running: int
    """Requests in flight, others' included."""
    waiting: int
    batch: int
    pending_s: float
    """Pending prefill behind the head of the line."""
    level_factor: float
    kv_usage_ratio: float | None
    kv_price_s: float
    has_slot: bool
    has_room: bool
    """A slot is free or about to be, and KV memory is below its hard limit."""
    spare_tokens: int
    """Tokens of a step's budget left for prefill."""
    chunk_s: float
    """Time that one full chunk of prefill takes here now; less while the instance is new."""
    mean_request_s: float
    """Moving average of whole requests on this instance."""
    slot_wait_s: float
    """Expected wait for a free slot."""
    kv_spare_tokens: float
    """KV tokens free below the hard limit once all that runs has said what it is expected to say; infinite where KV
    memory is unknown."""
    rare: Rare = COMMON
    """What few rows have (`scheduling/adjust.py`); the numbers above hold it already."""

    @property
    def idle(self) -> bool:
        return self.running == 0


MATRIX_FIELDS = (
    "base_s", "share", "head_due", "factor", "token_s", "pair_s", "plain", "sheddable", "slack_per_s", "crowd_s",
    "crowd_kv_s", "cold_s",
)  # fmt: skip
"""The numbers of a row that a price matrix holds, in the order of its lines."""


def column(row: Row) -> tuple[float, ...]:
    """A row as one column of a price matrix."""
    return (
        row.base_s, row.share, row.head_due, row.factor, row.token_s, row.pair_s, row.plain, row.sheddable,
        row.slack_per_s, row.crowd_s, row.crowd_kv_s, row.cold_s,
    )  # fmt: skip


class Ask(msgspec.Struct, gc=False, kw_only=True):
    """A request as the price sees it."""

    prompt_tokens: int
    output_tokens: float
    hits: Sequence[int] | None = None
    """Cached prompt tokens by row; None: none anywhere."""
    sheddable: bool = False
    ttft_slo_s: float = 0.0
    first_token_due: Instant = 0
    """From here on a first token is worth nothing; 0: it may not be shed, or is under way."""
    step_s_max: float = 0.0
    """Longest decode step that the cap on concurrency allows; 0: not capped."""


def derive(instance: Instance, settings: Settings, lengths: OutputLengths, now: Instant) -> Row:
    """The instance's row as of now. Called when something on the instance changed: some 1.3 us, so written flat."""
    ledger = instance.ledger
    foreign = instance.foreign
    decoding, waiting = len(ledger.decoding), len(ledger.waiting)
    batch = decoding + foreign
    running = batch + waiting
    context = ledger.context_tokens
    if foreign and decoding:
        context += foreign * context // decoding
    step_base, token_s, kv_s, pair_s = instance.step_times.coefficients
    level = instance.level.factor if instance.slowness.believed(instance.level) else 1.0
    share = 1.0 / instance.weight if instance.weight > 0 else float("inf")
    chunk = settings.chunk_tokens
    spare = max(chunk - batch, chunk // 8)
    step_s = step_base + token_s * (batch + 1) + kv_s * context
    own_token_s = token_s + step_s / spare
    behind_ns, head_due = ledger.waiting_ns, 0
    if waiting:
        head = next(iter(ledger.waiting.values()))
        behind_ns -= head.work_ns
        head_due = ledger.head_since + head.work_ns
    behind_s = behind_ns / SECOND
    usage = instance.kv_usage(now, settings.scrape_age_s_max) if instance.snapshot is not None else None
    kv_price, kv_spare = 0.0, inf
    if usage is not None:
        assert instance.snapshot is not None
        capacity = instance.snapshot.kv_capacity_tokens or 0
        kv_spare = (settings.kv_hard_ratio - usage) * capacity - ledger.owed_tokens
    if usage is not None and usage > settings.kv_soft_ratio:
        kv_price = settings.kv_soft_price_s * (usage - settings.kv_soft_ratio)
    slots = instance.spec.slots or instance.slot_guess.slots or settings.slots_default
    if instance.slack_at >= 0 and now - instance.slack_at > SLACK_AGE_NS:
        _refresh_slack(instance, step_s * level, lengths, now)
    owed = ledger.owed_tokens
    if foreign and decoding + waiting:
        owed += foreign * owed // (decoding + waiting)
    has_slot = slots is None or running < slots
    slot_wait_s = 0.0
    if slots is not None and not has_slot:  # slots come free one by one, spread over the length of a request
        slot_wait_s = (running - slots + 1) * instance.mean_request_s / slots
    gap_s = step_s + token_s * waiting + kv_s * ledger.waiting_tokens
    if running:
        gap_s *= instance.stretch.factor
    below_slots = slots is None or running < slots + WAITING_MIN + slots // SLOTS_PER_WAITING
    imposed_waiting = 1.0 + waiting
    return Row(
        instance.spec.id,
        instance.slot,
        (behind_s + slot_wait_s) * share + kv_price,
        share,
        head_due,
        level * share,
        own_token_s,
        pair_s,
        imposed_waiting + settings.work_price + IMPOSED_PLAIN * batch,
        imposed_waiting + settings.work_price_sheddable + IMPOSED_SHEDDABLE * batch,
        instance.slack_per_s,
        step_s,
        gap_s,
        gap_s + running * token_s,
        running * kv_s,
        (behind_s + OWED_TOKEN_S * owed) * share + kv_price,
        running,
        waiting,
        batch,
        behind_s,
        level,
        usage,
        kv_price,
        has_slot,
        below_slots and (usage is None or usage <= settings.kv_hard_ratio or running == 0),
        spare,
        chunk * own_token_s * level,
        instance.mean_request_s,
        slot_wait_s,
        kv_spare,
    )


def _refresh_slack(instance: Instance, step_s: float, lengths: OutputLengths, now: Instant) -> None:
    """Sum over decoding requests with a TPOT target of the mean of 1/slack over quantiles of what they still have to
    say: the share of its budget that a second of delay takes from each. Kept for 100 ms."""
    instance.slack_at = now
    rows = [
        (flight.tpot_slo_s, flight.output_tokens, now - flight.first_token_at)
        for flight in instance.ledger.decoding.values()
        if flight.tpot_slo_s is not None and flight.first_token_at is not None
    ]
    if not rows:
        instance.slack_per_s = 0.0
        return
    target, so_far, spent_ns = np.array(rows).T
    left = lengths.remaining_many(so_far, SLACK_QUANTILES)
    slack = (target * so_far - spent_ns / SECOND) + left * (target - step_s)
    shares = np.where(slack > SLACK_MIN_S, 1.0 / np.maximum(slack, SLACK_FLOOR_S), 0.0)
    instance.slack_per_s = float(shares.sum()) / len(SLACK_QUANTILES)


def equal_cost(ask: Ask, rows: Sequence[Row], now: Instant) -> list[float]:
    """Price on each row, in seconds; plain loop."""
    n, output, hits = ask.prompt_tokens, ask.output_tokens, ask.hits
    shed, ttft = ask.sheddable, ask.ttft_slo_s
    prices = []
    u = n
    for position, row in enumerate(rows):
        if hits is not None:
            u = n - hits[position]
        work = u * (row.token_s + row.pair_s * (n - 0.5 * u))
        weight = row.sheddable + ttft * row.slack_per_s if shed else row.plain
        price = row.base_s + row.factor * (work * weight + output * (row.crowd_s + row.crowd_kv_s * n))
        if row.head_due > now:
            price += row.share * (row.head_due - now) * 1e-9
        prices.append(price)
    return prices


def equal_cost_matrix(ask: Ask, matrix: np.ndarray, now: Instant) -> np.ndarray:
    """The same over a matrix of rows (MATRIX_FIELDS x instances)."""
    base, share, due, factor, token_s, pair_s, plain, sheddable, slack, crowd, crowd_kv, _ = matrix
    n = float(ask.prompt_tokens)
    u = n if ask.hits is None else n - np.asarray(ask.hits, dtype=np.float64)
    work = u * (token_s + pair_s * (n - 0.5 * u))
    weight = sheddable + ask.ttft_slo_s * slack if ask.sheddable else plain
    head = share * np.maximum(due - float(now), 0.0) * 1e-9
    price: np.ndarray = base + factor * (work * weight + ask.output_tokens * (crowd + crowd_kv * n)) + head
    return price


def cold(ask: Ask, rows: Sequence[Row], now: Instant) -> list[float]:
    """Least pending work, in seconds: before the step model has been learnt. Own cached tokens still count."""
    n, hits = ask.prompt_tokens, ask.hits
    prices = []
    for position, row in enumerate(rows):
        u = n - hits[position] if hits is not None else n
        price = row.cold_s + u * row.token_s
        if row.head_due > now:
            price += row.share * (row.head_due - now) * 1e-9
        prices.append(price)
    return prices


def cold_matrix(ask: Ask, matrix: np.ndarray, now: Instant) -> np.ndarray:
    """The same over a matrix of rows."""
    n = float(ask.prompt_tokens)
    u = n if ask.hits is None else n - np.asarray(ask.hits, dtype=np.float64)
    price: np.ndarray = matrix[11] + u * matrix[4] + matrix[1] * np.maximum(matrix[2] - float(now), 0.0) * 1e-9
    return price


def token_price_s(row: Row) -> float:
    """What one more token to prefill costs on the row, for traffic that may not be shed; attention not counted."""
    return row.factor * row.token_s * row.plain


def own_work_s(prompt_tokens: int, hit: int, row: Row) -> float:
    """w: own prefill work on the instance, its slowness included."""
    u = prompt_tokens - hit
    return u * (row.token_s + row.pair_s * (prompt_tokens - 0.5 * u)) * row.level_factor


def first_token_s(prompt_tokens: int, hit: int, row: Row, now: Instant) -> float:
    """Seconds from now to the first token on the row's instance; see `forecast`."""
    step = row.step_s * row.level_factor
    u = prompt_tokens - hit
    own = u * (row.token_s + row.pair_s * (prompt_tokens - 0.5 * u)) * row.level_factor
    ttft = row.pending_s + row.slot_wait_s + own
    if row.head_due > now:
        ttft += (row.head_due - now) * 1e-9
    if row.running:
        ttft += 0.5 * step
    if u < row.spare_tokens:
        ttft += (1.0 - u / row.spare_tokens) * step
    return ttft


def forecast(ask: Ask, row: Row, position: int, now: Instant) -> tuple[float, float]:
    """Unweighted seconds from now to the first and to the last token on the row's instance.

    A busy engine is half way through a step on average; a prompt takes at least one step of its own.
    """
    ttft = first_token_s(ask.prompt_tokens, int(ask.hits[position]) if ask.hits is not None else 0, row, now)
    return ttft, ttft + (ask.output_tokens - 1.0) * row.gap_s * row.level_factor if ask.output_tokens > 1.0 else ttft
