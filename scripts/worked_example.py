"""The worked example of docs/concepts/equal-cost.md: three instances, one request, the price of each taken apart.

`scripts/reference.py` writes its tables into the page; a test works the same numbers out by hand.
"""

from dataclasses import dataclass
from math import log
from random import Random

from isochrone.instances.ledger import Flight
from isochrone.instances.steptime import Coefficients, StepTimeModel
from isochrone.instances.table import Instance, InstanceTable
from isochrone.nouns.instance import InstanceSpec
from isochrone.nouns.instant import SECOND, nanoseconds
from isochrone.nouns.request import Request
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from isochrone.scheduling.lengths import OutputLengths
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row, derive, forecast
from isochrone.scheduling.terms import equal_cost_terms

STEP = Coefficients(step_s=0.015, token_s=60e-6, kv_s=80e-9, pair_s=2.8e-9)
CHUNK = 2048
PROMPT, OUTPUT, SHORT, MAX_TOKENS = 4000, 200, 50, 1000
MEAN_REQUEST_S = 5.0
WAITING_TOKENS = 1000
"""Prompt of each attempt that waits."""
NOW = 10 * SECOND


@dataclass(frozen=True)
class Given:
    """What the ledger says of one instance."""

    name: str
    cached: int
    """Tokens of the prompt that its prefix cache holds."""
    waiting: tuple[float, ...]
    """Prefill work of the attempts before their first token, in seconds; the first one has just begun."""
    decoding: int
    context: int
    """KV tokens of each decoding attempt."""
    slow: float = 1.0


GIVEN = (
    Given("A", cached=3000, waiting=(0.4, 0.3), decoding=20, context=1500),
    Given("B", cached=0, waiting=(), decoding=6, context=1000),
    Given("C", cached=0, waiting=(), decoding=0, context=0, slow=2.5),
)


def instance(given: Given, table: InstanceTable) -> Instance:
    """An instance in that state, made through its ledger."""
    made = table.add(InstanceSpec(id=given.name, url=f"http://{given.name}", device_class="example"))
    made.step_times = StepTimeModel(STEP)
    made.mean_request_s = MEAN_REQUEST_S
    if given.slow != 1.0:
        made.level.shift(log(given.slow))
        made.slowness.counts = True
    for number in range(given.decoding):
        one = _flight(number, given.context - 1, 0.0)
        made.ledger.enter(one, NOW)
        made.ledger.first_token(one, NOW)
    for number, work_s in enumerate(given.waiting):
        made.ledger.enter(_flight(1000 + number, WAITING_TOKENS, work_s), NOW)
    return made


def _flight(number: int, tokens: int, work_s: float) -> Flight:
    return Flight(
        attempt=number,
        request=f"r{number}",
        slot=0,
        incarnation=0,
        ordinal=1,
        dispatched_at=NOW,
        prompt_tokens=tokens,
        uncached_tokens=tokens,
        work_ns=nanoseconds(work_s),
        expected_output=OUTPUT,
    )


def rows() -> list[Row]:
    """The instances' rows."""
    table, lengths = InstanceTable(), OutputLengths()
    return [derive(instance(given, table), Settings(chunk_tokens=CHUNK), lengths, NOW) for given in GIVEN]


def ask(output: int = OUTPUT) -> Ask:
    """The request."""
    return Ask(prompt_tokens=PROMPT, output_tokens=float(output), hits=[given.cached for given in GIVEN])


def terms(output: int = OUTPUT) -> list[dict[str, float]]:
    """The price on each instance, term by term."""
    return [equal_cost_terms(ask(output), row, position, NOW) for position, row in enumerate(rows())]


def forecasts() -> list[tuple[float, float]]:
    """Seconds to the first and the last token on each instance."""
    return [forecast(ask(), row, position, NOW) for position, row in enumerate(rows())]


def textbook() -> list[float]:
    """What the textbook's estimate says, with the same speeds and the client's max_tokens for the output."""
    pool = Pool("example")
    pool.rows = rows()
    request = Request(id="r", model="example", path="/v1/chat/completions", max_tokens=MAX_TOKENS)
    prices = policies.make("estimated-time", Random(0)).prices(ask(), request, pool, NOW)
    return [float(price) for price in prices]


def state_lines() -> list[tuple[str, ...]]:
    """What is known of each instance."""
    return [
        (
            given.name,
            f"{given.cached:,}",
            ", ".join(f"{work_s:g} s" for work_s in given.waiting) or "none",
            str(given.decoding),
            f"{given.decoding * given.context:,}",
            f"{given.slow:g}",
        )
        for given in GIVEN
    ]


def price_lines() -> list[tuple[str, ...]]:
    """Each term on each instance in seconds, their sum, and the sum for a short answer."""
    priced, short = terms(), terms(SHORT)
    lines = [(f"`{name}`", *(f"{one[name]:.3f}" for one in priced)) for name in priced[0]]
    lines.append(("**price**", *(f"**{sum(one.values()):.3f}**" for one in priced)))
    lines.append((f"price with {SHORT} output tokens", *(f"{sum(one.values()):.3f}" for one in short)))
    lines.append(("forecast of the first token", *(f"{first_s:.3f}" for first_s, _ in forecasts())))
    lines.append(("forecast of the last token", *(f"{last_s:.3f}" for _, last_s in forecasts())))
    lines.append(("the textbook's estimate", *(f"{estimate:.1f}" for estimate in textbook())))
    return lines
