"""What the cluster learns from its own traffic: step times, levels, output lengths, tokens in a prompt."""

from math import ceil

from isochrone.cluster.world import Flow, World
from isochrone.instances.ledger import Flight
from isochrone.instances.steptime import recentre
from isochrone.instances.table import Instance
from isochrone.nouns.events import Ended, Outcome
from isochrone.nouns.instant import MILLISECOND, Instant, seconds

WINDOW_TOKENS_MIN = 8
"""Shorter windows of a stream say more about jitter than about steps."""
SAMPLE_GAP_NS = 50 * MILLISECOND
"""At most one sample of a kind from an instance in this time: the streams of a batch all see the same steps."""
LESSONS_ALL = 1000
"""So many first answers all teach sizes and lengths, later every fourth: each adds little then, and takes 4 us."""
LEVEL_GAIN = 1 / 32
FIRST_TOKEN_WEIGHT = 0.25
"""A first token's sample is twice or three times as noisy as a window's: how far the step under way was is a guess."""
RECENTRE_EVERY = 64
"""Samples between two looks at the median level of each class."""


def first_token(world: World, now: Instant, flight: Flight, instance: Instance) -> None:
    """A sample for the class: prefill of what was ahead and of the own prompt. Levels are learnt from gaps only, since
    the first token of a well-cached prompt says more about the step under way than about speed."""
    if now - instance.last_first_token_sample_at < SAMPLE_GAP_NS or instance.foreign:
        return
    instance.last_first_token_sample_at = now
    tokens = flight.tokens_ahead + flight.uncached_tokens
    spare = max(1, world.settings.chunk_tokens - flight.batch_then)
    steps = float(ceil(tokens / spare)) + (0.5 if flight.busy_then else 0.0)
    pairs = float(flight.pairs_ahead + flight.pairs)
    x = (steps, tokens + flight.batch_then * steps, flight.context_then * steps, pairs)
    elapsed_s = seconds(now - flight.dispatched_at)
    instance.step_times.observe(x, elapsed_s, instance.level.value, FIRST_TOKEN_WEIGHT)
    _sampled(world, instance)


def window(world: World, now: Instant, flight: Flight, instance: Instance) -> None:
    """A window of decode gaps: moves the class's shape and the instance's level."""
    tokens = flight.output_tokens - flight.window_tokens
    if tokens < WINDOW_TOKENS_MIN:
        return
    ledger = instance.ledger
    if now - instance.last_sample_at >= SAMPLE_GAP_NS:
        instance.last_sample_at = now
        span_ns, batch, context, prefilled, pairs = ledger.window(flight, now)
        x = (float(tokens), tokens * (batch + instance.foreign) + prefilled, tokens * context, pairs)
        residual = instance.step_times.observe(x, seconds(span_ns), instance.level.value)
        if residual is not None:
            instance.level.observe(residual, LEVEL_GAIN)
        _sampled(world, instance)
    ledger.begin_window(flight, now)


def attempt_ended(
    world: World, now: Instant, flow: Flow, flight: Flight, instance: Instance, event: Ended
) -> None:  # fmt: skip
    """What the end of an attempt tells: token counts, how long answers are, and one sample over the whole time of an
    answer that was not streamed."""
    usage, decision, request = event.usage, flow.decision, flow.request
    output = event.output_tokens
    if usage is not None:
        if usage.prompt_tokens is not None:
            decision.prompt_tokens = usage.prompt_tokens
            if event.attempt % 4 == 0 or world.attempts_given < LESSONS_ALL:
                world.prompt_tokens.learn(flow.pool.model, request.size, usage.prompt_tokens)
        if usage.completion_tokens is not None:
            output = usage.completion_tokens
        decision.cached_tokens = usage.cached_tokens
    if not request.generates:
        return
    decision.output_tokens = output
    if output > 0 and event.outcome in (Outcome.DONE, Outcome.CLIENT_LEFT, Outcome.LOST):
        cut_short = event.outcome is not Outcome.DONE or (usage is not None and usage.finish_reason == "length")
        if event.attempt % 4 == 0 or world.attempts_given < LESSONS_ALL:
            each = max(1, output // request.choices)
            world.lengths.observe(flow.pool.model, request.route, each, cut_short, now)
    if event.outcome is Outcome.DONE and not request.stream and output > 0 and request.choices == 1:
        _whole_answer(world, now, flight, instance, output)


def _whole_answer(world: World, now: Instant, flight: Flight, instance: Instance, output: int) -> None:
    """Prefill and all decode steps in one sample."""
    if now - instance.last_sample_at < SAMPLE_GAP_NS or instance.foreign:
        return
    instance.last_sample_at = now
    batch = max(1, (flight.batch_then + 1 + len(instance.ledger.decoding)) // 2)
    context = (flight.context_then + instance.ledger.context_tokens) / 2 + flight.prompt_tokens
    prefill_tokens = flight.tokens_ahead + flight.uncached_tokens
    steps = output + prefill_tokens // world.settings.chunk_tokens
    pairs = float(flight.pairs_ahead + flight.pairs)
    x = (float(steps), float(prefill_tokens + batch * steps), context * steps, pairs)
    residual = instance.step_times.observe(x, seconds(now - flight.dispatched_at), instance.level.value)
    if residual is not None:
        instance.level.observe(residual, LEVEL_GAIN)
    _sampled(world, instance)


def _sampled(world: World, instance: Instance) -> None:
    """A class has learnt: derive rows anew, at once while it is cold and moves fast, later now and then. Then also move
    the median level of each class into its model, and see which pools are warm."""
    world.samples_since_recentre += 1
    cold = instance.step_times.samples <= world.settings.samples_warm
    if not cold and world.samples_since_recentre < RECENTRE_EVERY:
        return
    world.samples_since_recentre = 0
    classes: dict[int, list[Instance]] = {}
    for one in world.table.by_id.values():
        classes.setdefault(id(one.step_times), []).append(one)
        world.touch(one)
    for alike in classes.values():
        recentre([one.level for one in alike], alike[0].step_times)
    for pool in world.pools.values():
        pool.warm_up(world.settings.samples_warm)
