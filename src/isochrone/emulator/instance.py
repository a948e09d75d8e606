"""One emulated instance: the twin in real time, and the answers that its steps feed.

The twin's steps stand on absolute instants: a timer that fires late delays one step's tokens, never the steps behind
it. How late is a metric. A process that has fallen more than `LAG_MAX` behind gives that time up (and counts it)
instead of bursting.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from isochrone.emulator.answer import Answer, Counts, StreamedAnswer, WholeAnswer
from isochrone.emulator.blockhash import BlockHashes
from isochrone.emulator.body import Ask, Refused
from isochrone.emulator.metrics import EngineMetrics
from isochrone.emulator.text import Continuation
from isochrone.emulator.tokenizer import END
from isochrone.nouns.instant import MILLISECOND, SECOND, Instant, seconds
from isochrone.twin.engine import Engine, Step
from isochrone.twin.profiles import Profile
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import Row, TwinRequest

TIMER_SLACK = MILLISECOND // 2
"""The event loop's timers have steps of one millisecond: what is due within half of one is due now."""
LAG_MAX = SECOND // 4
WAKE_STEPS_MAX = 64
"""Steps caught up with before other connections are looked at."""
WAITING_SEQUENCES_MAX = 10_000
"""Sequences waiting in the engine; one more is answered 503."""


class Sink(Protocol):
    """Where an answer's bytes go: a connection."""

    def write(self, data: bytes) -> None: ...
    def done(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Character:
    """What the instance serves and how."""

    profile: Profile
    model: str
    pace: float = 1.0
    """Multiplies every step's duration."""
    seed: int = 0
    """Of the text: instances that serve the same model share it."""
    mean_output: float | None = 200.0
    """Mean tokens of an answer that nothing else ends; None: only max_tokens ends it."""

    @property
    def context_tokens(self) -> int:
        """max_model_len: never more than the KV cache holds."""
        profile = self.profile
        return min(profile.max_model_len, profile.kv_tokens // profile.block_tokens * profile.block_tokens)


class Generation:
    """One request: an answer made of one or several sequences."""

    __slots__ = ("answer", "choices", "counts", "open", "sink")

    def __init__(self, answer: Answer, counts: Counts, sink: Sink) -> None:
        self.answer = answer
        self.counts = counts
        self.sink = sink
        self.choices: list[Choice] = []
        self.open = 0
        """Sequences still running."""


@dataclass(slots=True, eq=False)
class Choice:
    """One sequence of a generation."""

    generation: Generation
    index: int
    row: Row
    prompt: list[int]
    continuation: Continuation
    blocks: BlockHashes
    ends_after: int
    """END may be drawn once this many tokens are out; beyond the limit: never."""
    last_token_at: Instant = -1


class Instance:
    """Takes requests to generate, runs the twin on the event loop's clock, writes what its steps emit."""

    def __init__(self, character: Character) -> None:
        profile = character.profile
        self.character = character
        self.metrics = EngineMetrics()
        self.started_at_unix_s = time.time()
        limits = Limits(
            max_num_seqs=profile.max_num_seqs,
            chunk_tokens=profile.chunk_tokens,
            block_tokens=profile.block_tokens,
            kv_blocks=profile.kv_tokens // profile.block_tokens,
        )
        self.engine = Engine(limits, profile.step, character.pace)
        self._live: dict[Row, Choice] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: Instant | None = None
        self._last_step_ended: Instant = -1
        self._requests = 0

    @property
    def busy(self) -> bool:
        return bool(self._live)

    # Requests

    def start(self, ask: Ask, sink: Sink) -> Generation:
        """Begin to generate. Raises Refused when it does not fit."""
        outputs = [self._output_tokens(ask, prompt) for prompt in ask.prompts]
        if len(self.engine.scheduler.waiting) + len(ask.prompts) * ask.n > WAITING_SEQUENCES_MAX:
            message = f"The engine's queue holds its limit of {WAITING_SEQUENCES_MAX} sequences."
            raise Refused(503, message, None, "ServiceUnavailableError")
        self._requests += 1
        counts = Counts(prompt=sum(map(len, ask.prompts)))
        kind = StreamedAnswer if ask.stream else WholeAnswer
        id = f"{'chatcmpl' if ask.chat else 'cmpl'}-emulated-{id_of(self)}-{self._requests}"
        generation = Generation(kind(ask, id, self.character.model, int(time.time()), counts), counts, sink)
        now = time.monotonic_ns()
        for prompt, output_tokens in zip(ask.prompts, outputs, strict=True):
            for nth in range(ask.n):
                self._submit(now, generation, ask, prompt, output_tokens, nth)
        head = generation.answer.head()
        if head:
            sink.write(head)
        self._arm()
        return generation

    def _output_tokens(self, ask: Ask, prompt: list[int]) -> int:
        """Longest answer to the prompt; refuses what the context has no room for."""
        context = self.character.context_tokens
        room = context - len(prompt)
        wanted = ask.max_tokens if ask.max_tokens is not None else max(1, room)
        if wanted > room:
            message = (
                f"This model's maximum context length is {context} tokens. Asked for were {len(prompt) + wanted}: "
                f"{len(prompt)} in the prompt and {wanted} of output. Shorten one of them."
            )
            raise Refused(400, message, "input_tokens")
        return wanted

    def _submit(
        self, now: Instant, generation: Generation, ask: Ask, prompt: list[int], output_tokens: int, nth: int
    ) -> None:
        index = len(generation.choices)
        blocks = BlockHashes(self.character.profile.block_tokens, prompt)
        request = TwinRequest(f"{self._requests}.{index}", len(prompt), output_tokens, blocks.hashes)
        row = self.engine.submit(now, request)
        # The second and later answers to one prompt differ from the first by their seed.
        continuation = Continuation(prompt, self.character.seed + nth, self.character.mean_output)
        ends_after = output_tokens if ask.ignore_eos else ask.min_tokens
        choice = Choice(generation, index, row, prompt, continuation, blocks, ends_after)
        generation.choices.append(choice)
        generation.open += 1
        self._live[row] = choice

    def abort(self, generation: Generation) -> None:
        """The client has left: free what it holds."""
        for choice in generation.choices:
            if self._live.pop(choice.row, None) is not None:
                self.engine.end(choice.row)
                self.metrics.finished["abort"] += 1
        generation.open = 0

    # Time

    def _arm(self) -> None:
        """One timer, for the twin's next event."""
        at = self.engine.next_event()
        if at == self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = at
        if at is not None:
            delay_s = max(0.0, seconds(at - time.monotonic_ns()))
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = self._armed_for = None
        due = time.monotonic_ns() + TIMER_SLACK
        steps = 0
        while steps < WAKE_STEPS_MAX and (at := self.engine.next_event()) is not None and at <= due:
            step = self.engine.advance(at)
            if step is not None:
                steps += 1
                self._emit(step)
                self._watch_lag(step, due - TIMER_SLACK)
        self._arm()

    def _watch_lag(self, step: Step, now: Instant) -> None:
        lag = now - step.ended
        self.metrics.lag_s.observe(max(0.0, seconds(lag)))
        if lag > LAG_MAX:
            self.metrics.lag_dropped_s += seconds(lag)
            self.engine.skip_to(now)

    # Tokens

    def _emit(self, step: Step) -> None:
        """One token for each row of a finished step."""
        metrics, live = self.metrics, self._live
        prompts_before = metrics.prompt_tokens_computed
        previous = self._last_step_ended
        steady = 0
        for row in step.emitted:
            choice = live[row]
            token = choice.continuation.next(row.emitted > choice.ends_after)
            choice.blocks.push(token)
            generation = choice.generation
            generation.counts.completion += 1
            finish = None
            if token == END:
                self.engine.end(row)
                finish = "stop"
            elif row.ended:
                finish = "length"
            if row.emitted == 1:
                data = self._first(choice, token, finish)
            else:
                data = generation.answer.token(choice.index, token, finish, None)
                if choice.last_token_at == previous:
                    steady += 1
                else:
                    metrics.gap(step.ended - choice.last_token_at, 1)
            choice.last_token_at = step.ended
            if finish is not None:
                data += self._finish(choice, finish)
            if data:
                generation.sink.write(data)
            if generation.open == 0:
                generation.sink.done()
        # Rows that got a token in the step before share one gap: it is counted once for all of them.
        metrics.gap(step.ended - previous, steady)
        metrics.step(len(step.emitted), metrics.prompt_tokens_computed - prompts_before)
        self._last_step_ended = step.ended

    def _first(self, choice: Choice, token: int, finish: str | None) -> bytes:
        row, generation = choice.row, choice.generation
        self.metrics.first_token(row)
        if choice.index % generation.answer.ask.n == 0:  # the others share this prompt
            generation.counts.cached += row.cached
        head = generation.answer.first(choice.index, choice.prompt)
        return head + generation.answer.token(choice.index, token, finish, choice.prompt)

    def _finish(self, choice: Choice, finish: str) -> bytes:
        del self._live[choice.row]
        choice.generation.open -= 1
        self.metrics.ended(choice.row, finish)
        return choice.generation.answer.end() if choice.generation.open == 0 else b""


def id_of(instance: Instance) -> str:
    """Tells the answers of instances apart: part of the start time, in microseconds."""
    return f"{int(instance.started_at_unix_s * 1e6) & 0xFFFFFFFF:08x}"
