"""A seeded workload of three route classes: who asks what, and when. The same for every policy that it is replayed on.

* **chat**: conversations of several turns under one of a few shared system prompts; each turn resends all before it.
* **document**: a text of some thousand tokens with a short question; some readers ask more about the same text.
* **extraction**: a long shared instruction, a short record, a few tokens out.

Sessions start in bursts: gaps between starts are Gamma distributed with a coefficient of variation of `burst_cv` (1
would be Poisson). Counts and sizes are stratified, so that two seeds differ in order and hardly in total work.
Assistant turns are made up beforehand: what an engine answered never changes what is asked next.
Sessions that would have begun before the window are cut at its start, so that the load is level from the first second.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from isochrone.loadgen.calls import Call
from isochrone.loadgen.text import words

CHAT, DOCUMENT, EXTRACTION = "chat", "document", "extraction"
PATH = "/v1/chat/completions"
OUTPUT_FIELD = "min_tokens"
"""How long an answer will turn out, on engines that end it at the first chance (`isochrone emulate --mean-output 1`).
The gateway does not read it: to the gateway the length is as unknown as in life. `max_tokens` is the route's bound."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One route class. Tokens are ranges, drawn evenly on a logarithmic scale."""

    sessions_per_s: float
    turns: tuple[int, int]
    """Least and most turns of a session."""
    gap_s: tuple[float, float]
    """End of an answer to the next turn's release."""
    shared_prompts: int
    """Different system prompts or instructions."""
    shared_tokens: tuple[int, int]
    first_tokens: tuple[int, int]
    """What the first turn adds to the shared part: a question, a document, a record."""
    later_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    max_tokens: int


SHAPES = {
    CHAT: Shape(3.6, (2, 3), (0.8, 2.5), 4, (300, 900), (30, 300), (20, 200), (25, 90), 256),
    DOCUMENT: Shape(1.05, (1, 2), (1.0, 2.5), 1, (60, 60), (2200, 4800), (20, 60), (25, 75), 256),
    EXTRACTION: Shape(4.3, (1, 1), (0.0, 0.0), 5, (700, 1400), (80, 400), (0, 0), (10, 40), 100),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session, released at the later of `at_s` and the end of the turn before plus `gap_s`."""

    at_s: float
    """Seconds from the start of the workload."""
    gap_s: float
    call: Call
    counted: bool
    """False in the warm-up."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions, each a row of turns."""

    sessions: tuple[tuple[Turn, ...], ...]
    warm_s: float
    seconds: float

    @property
    def requests(self) -> int:
        """Requests that count."""
        return sum(turn.counted for session in self.sessions for turn in session)


def workload(
    seed: int,
    model: str,
    *,
    warm_s: float,
    seconds: float,
    rate_scale: float = 1.0,
    burst_cv: float = 1.8,
    shapes: dict[str, Shape] = SHAPES,
) -> Workload:
    """Arrivals over `warm_s` seconds that are not counted and `seconds` that are; `rate_scale` multiplies all rates."""
    sessions: list[tuple[Turn, ...]] = []
    for route, shape in shapes.items():
        rng = random.Random(f"{seed} {route}")
        sessions += _sessions(rng, route, shape, model, warm_s, warm_s + seconds, rate_scale, burst_cv)
    sessions.sort(key=lambda session: session[0].at_s)
    return Workload(tuple(sessions), warm_s, seconds)


def _sessions(
    rng: random.Random,
    route: str,
    shape: Shape,
    model: str,
    warm_s: float,
    end_s: float,
    rate_scale: float,
    burst_cv: float,
) -> list[tuple[Turn, ...]]:
    longest_s = (shape.turns[1] - 1) * (shape.gap_s[1] + _answer_s(shape.output_tokens[1]))
    span_s = longest_s + end_s
    count = max(1, round(shape.sessions_per_s * rate_scale * span_s))
    starts = [start - longest_s for start in _bursts(rng, count, span_s, burst_cv)]
    shared = [words(rng, tokens) for tokens in _spread(rng, shape.shared_prompts, shape.shared_tokens)]
    turns = [round(value) for value in _even(rng, count, *shape.turns)]
    firsts = _spread(rng, count, shape.first_tokens)
    made: list[tuple[Turn, ...]] = []
    for number, start in enumerate(starts):
        session = _Session(rng, route, shape, model, shared[number % len(shared)], firsts[number])
        rows = session.turns(start, turns[number], lambda at: 0 <= at < end_s, warm_s)
        if rows:
            made.append(rows)
    return made


class _Session:
    """Writes one session's turns, each body holding all messages before it."""

    def __init__(self, rng: random.Random, route: str, shape: Shape, model: str, shared: str, first: int) -> None:
        self._rng = rng
        self._route = route
        self._shape = shape
        self._model = model
        self._first = first
        self._messages: list[dict[str, str]] = [{"role": "system", "content": shared}]

    def turns(self, start: float, count: int, within: Callable[[float], bool], warm_s: float) -> tuple[Turn, ...]:
        rng, shape = self._rng, self._shape
        made: list[Turn] = []
        at_s, gap_s = start, 0.0
        for number in range(count):
            asked = self._first if number == 0 else _log_uniform(rng, shape.later_tokens)
            output = _log_uniform(rng, shape.output_tokens)
            self._messages.append({"role": "user", "content": words(rng, asked)})
            if within(at_s):
                made.append(Turn(at_s, gap_s if made else 0.0, self._call(output), at_s >= warm_s))
            self._messages.append({"role": "assistant", "content": words(rng, output)})
            gap_s = rng.uniform(*shape.gap_s)
            at_s += _answer_s(output) + gap_s
        return tuple(made)

    def _call(self, output_tokens: int) -> Call:
        body = {
            "model": self._model,
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self._shape.max_tokens,
            OUTPUT_FIELD: output_tokens,
        }
        return Call(PATH, msgspec.json.encode(body), route=self._route)


def _answer_s(output_tokens: int) -> float:
    """How long the schedule expects an answer to take: half a second and 50 ms a token, an unloaded engine's time."""
    return 0.5 + 0.05 * output_tokens


def _bursts(rng: random.Random, count: int, span_s: float, cv: float) -> list[float]:
    """`count` instants in [0, span_s) whose gaps are Gamma distributed, scaled so that the count is exact."""
    shape = 1 / (cv * cv)
    gaps = [rng.gammavariate(shape, 1.0) for _ in range(count + 1)]
    total = sum(gaps)
    at, instants = 0.0, []
    for gap in gaps[:-1]:
        at += gap
        instants.append(span_s * at / total)
    return instants


def _even(rng: random.Random, count: int, low: float, high: float) -> list[float]:
    """`count` values, one from each of `count` equal slices of [low, high], in random order."""
    values = [low + (high - low) * (slot + rng.random()) / count for slot in range(count)]
    rng.shuffle(values)
    return values


def _spread(rng: random.Random, count: int, tokens: tuple[int, int]) -> list[int]:
    """Stratified on a logarithmic scale."""
    low, high = tokens
    return [round(low * (high / low) ** value) for value in _even(rng, count, 0.0, 1.0)]


def _log_uniform(rng: random.Random, tokens: tuple[int, int]) -> int:
    low, high = tokens
    return round(low * (high / low) ** rng.random()) if low else 0
