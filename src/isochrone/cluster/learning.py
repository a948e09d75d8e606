"""What the cluster learns from its own traffic: step times, levels, output lengths, tokens in a prompt."""

from math import ceil

from isochrone.cluster.world import Flow, World
from isochrone.instances import classes
from isochrone.instances.gaps import Gaps
from isochrone.instances.ledger import Flight
from isochrone.instances.slowness import forgive, judge
from isochrone.instances.steptime import Regressor, recentre
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
    if now - instance.last_first_token_sample_at < SAMPLE_GAP_NS or instance.foreign or flight.slot_bound:
        return
    instance.last_first_token_sample_at = now
    tokens = flight.tokens_ahead + flight.uncached_tokens
    spare = max(1, world.settings.chunk_tokens - flight.batch_then)
    steps = float(ceil(tokens / spare)) + (0.5 if flight.busy_then else 0.0)
    pairs = float(flight.pairs_ahead + flight.pairs)
    x = (steps, tokens + flight.batch_then * steps, flight.context_then * steps, pairs)
    elapsed_s = seconds(now - flight.dispatched_at)
    if "steps" not in world.settings.without:
        instance.step_times.observe(x, elapsed_s, instance.level.value, FIRST_TOKEN_WEIGHT)
    _sampled(world, now, instance)


def window(world: World, now: Instant, flight: Flight, instance: Instance) -> None:
    """A window of decode gaps: moves the class's shape and the instance's level."""
    tokens = flight.output_tokens - flight.window_tokens
    if tokens < WINDOW_TOKENS_MIN:
        return
    ledger = instance.ledger
    if now - instance.last_sample_at >= SAMPLE_GAP_NS:
        span_ns, batch, context, prefilled, pairs = ledger.window(flight, now)
        x = (float(tokens), tokens * (batch + instance.foreign) + prefilled, tokens * context, pairs)
        _stretch(instance, x, prefilled, seconds(now - instance.last_sample_at))
        _learn(world, now, instance, x, seconds(span_ns))
        if world.settings.cap_ratio is not None:
            if instance.gaps is None:
                instance.gaps = Gaps()
            instance.gaps.observe(batch + instance.foreign, seconds(span_ns) / tokens)
    ledger.begin_window(flight, now)


def _stretch(instance: Instance, x: Regressor, prefilled: float, quiet_s: float) -> None:
    """A window as the model explains it, and the part of it that was decoding. Not the time that really passed: being
    slow is not having prompts to compute."""
    steps, tokens, kv_read, _ = x
    model = instance.step_times
    instance.stretch.observe(model.predict(x), model.predict((steps, tokens - prefilled, kv_read, 0.0)), quiet_s)


def _learn(world: World, now: Instant, instance: Instance, x: Regressor, elapsed_s: float) -> None:
    """One sample of decode steps: for the class's shape, the instance's level, and whether that is to be believed."""
    quiet_ns, instance.last_sample_at = now - instance.last_sample_at, now
    level, slowness = instance.level, instance.slowness
    learns = "steps" not in world.settings.without
    residual = instance.step_times.observe(x, elapsed_s, level.value) if learns else None
    if residual is not None:
        excess = residual + level.value
        lasting_changed = slowness.observe(excess, level)
        if world.any_slow and slowness.slow(level):
            forgive(excess, level, quiet_ns)
        level.observe(residual, LEVEL_GAIN)
        world.any_slow = world.any_slow or slowness.slow(level)
        if lasting_changed:
            _judge(world, [one for one in world.table.by_id.values() if one.step_times is instance.step_times])
    _sampled(world, now, instance)


def _judge(world: World, alike: list[Instance]) -> None:
    """Who of a class is slow."""
    if judge([(one.slowness, one.level) for one in alike]):
        for one in alike:
            world.touch(one)
        world.any_slow = any(one.slowness.slow(one.level) for one in world.table.by_id.values())


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
    over = event.outcome in (Outcome.DONE, Outcome.CLIENT_LEFT) or (
        event.outcome is Outcome.LOST and not event.resumable
    )
    if output > 0 and over:
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
    batch = max(1, (flight.batch_then + 1 + len(instance.ledger.decoding)) // 2)
    context = (flight.context_then + instance.ledger.context_tokens) / 2 + flight.prompt_tokens
    prefill_tokens = flight.tokens_ahead + flight.uncached_tokens
    steps = output + prefill_tokens // world.settings.chunk_tokens
    pairs = float(flight.pairs_ahead + flight.pairs)
    x = (float(steps), float(prefill_tokens + batch * steps), context * steps, pairs)
    _learn(world, now, instance, x, seconds(now - flight.dispatched_at))


def _sampled(world: World, now: Instant, instance: Instance) -> None:
    """A class has learnt: derive rows anew, at once while it is cold and moves fast, later now and then. Then also look
    at each class as a whole, and see which pools are warm."""
    world.samples_since_recentre += 1
    cold = instance.step_times.samples <= world.settings.samples_warm
    if not cold and world.samples_since_recentre < max(RECENTRE_EVERY, len(world.table.by_id)):  # all are looked at
        return
    world.samples_since_recentre = 0
    by_class: dict[str, list[Instance]] = {}
    for one in world.table.by_id.values():
        by_class.setdefault(one.class_name, []).append(one)
        world.touch(one)
    for name, alike in by_class.items():
        _look_at_class(world, now, name, alike)
    world.any_slow = any(one.slowness.slow(one.level) for one in world.table.by_id.values())
    for pool in world.pools.values():
        pool.warm_up(world.settings.samples_warm)


def _look_at_class(world: World, now: Instant, name: str, alike: list[Instance]) -> None:
    """Move its median level into its model, judge its members, watch it as a whole, and let who has differed for long
    go to another class."""
    model = alike[0].step_times
    recentre([one.level for one in alike], model)
    _judge(world, alike)
    if model.samples >= world.settings.samples_warm:
        world.table.watch(name).look(model, classes.USUAL_STEP, now)
    for one in alike:
        one.differs_since = classes.differing_since(one.differs_since, one.slowness.believed(one.level), now)
        may_split = one.spec.device_class is None and len(alike) > 1 and "own-class" not in world.settings.without
        if may_split and classes.is_due(one.differs_since, now):
            world.table.settle_apart(one)
