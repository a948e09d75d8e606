"""Events of attempts: accepted, first token, progress, end. Late news of an unknown attempt is ignored."""

from isochrone.cluster import deadlines, hedging, learning, sharing
from isochrone.cluster.endings import finish
from isochrone.cluster.hedging import attempt_of
from isochrone.cluster.placement import pump
from isochrone.cluster.requests import CLIENT_CLOSED
from isochrone.cluster.retries import FAULTS, RETRYABLE, try_elsewhere
from isochrone.cluster.world import Flow, World
from isochrone.instances.ledger import Flight
from isochrone.instances.table import Instance
from isochrone.nouns.events import Accepted, Ended, FirstToken, Outcome, Progress, Stalled
from isochrone.nouns.instant import SECOND, Instant, seconds

MEAN_REQUEST_GAIN = 0.1
AT_ONCE_NS = SECOND // 4
"""An attempt that fails within this time before its first byte has cost its client next to nothing."""


def accepted(world: World, now: Instant, event: Accepted) -> None:
    """The engine took the attempt: a sign of life."""
    flow = world.flights.get(event.attempt)
    if flow is not None:
        attempt_of(flow, event.attempt)[1].last_token_at = now


def first_token(world: World, now: Instant, event: FirstToken) -> None:
    """Prefill is over: release its pending work, learn from it, see who can go next."""
    flow = world.flights.get(event.attempt)
    if flow is None:
        return
    flight, instance = attempt_of(flow, event.attempt)
    if flight.decoding or not hedging.first_token(world, now, flow, flight):
        return
    instance.last_token_at = now
    _heard(world, now, instance)
    if flow.request.stream:
        learning.first_token(world, now, flight, instance)
    instance.ledger.first_token(flight, now)
    for policy in world.listeners:
        policy.first_token(flow.request, instance, now)
    decision = flow.decision
    if not flow.continues:
        decision.first_token_at = now
    if flow.request.stream and not flow.continues:
        ttft_s = seconds(now - decision.arrived_at)
        world.series.first_token(flow.pool.model, flow.request.route, instance.id, ttft_s)
    world.touch(instance)
    _pump(world, now, instance)


def progress(world: World, now: Instant, event: Progress) -> None:
    """Output so far."""
    flow = world.flights.get(event.attempt)
    if flow is None:
        return
    flight, instance = attempt_of(flow, event.attempt)
    instance.last_token_at = now
    _heard(world, now, instance)
    instance.ledger.progress(flight, event.output_tokens)
    learning.window(world, now, flight, instance)
    world.touch(instance)


def stalled(world: World, now: Instant, event: Stalled) -> None:
    """No token for long. Told for the record; the relay's limits end it if it stays so."""


def ended(world: World, now: Instant, event: Ended) -> None:
    """Settle the attempt, then try elsewhere, fail, or finish."""
    flow = world.flights.pop(event.attempt, None)
    if flow is None:
        return
    flight, instance = attempt_of(flow, event.attempt)
    charged = flow.charged
    _settle(world, now, flow, flight, instance, event)
    if flow.rival is not None:
        flow.charged = charged  # for the other one
        if hedging.one_ended(world, flow, flight, event):
            _finish(world, now, flow, event)
    elif world.flows.get(flow.request.id) is flow:  # else the other one has ended it
        flow.flight = flow.instance = None
        if event.outcome in RETRYABLE:
            try_elsewhere(world, now, flow, flight, instance, event)
        else:
            _finish(world, now, flow, event)
    _pump(world, now, instance)
    world.retire_if_drained(instance)


def _heard(world: World, now: Instant, instance: Instance) -> None:
    """A sign of work. One that was put out for showing none may be tried again."""
    instance.heard_at = now
    if instance.life.stirred() is not None:
        world.regroup(instance)


def _finish(world: World, now: Instant, flow: Flow, event: Ended) -> None:
    status = CLIENT_CLOSED if event.outcome is Outcome.CLIENT_LEFT else event.status
    finish(world, now, flow, event.outcome._value_, status, event.why)


def _settle(world: World, now: Instant, flow: Flow, flight: Flight, instance: Instance, event: Ended) -> None:
    """Take out of the ledger what the attempt put in; note how it went; learn from it."""
    outcome = event.outcome
    if outcome is Outcome.DONE and flow.decision.first_token_at is None:
        flow.decision.first_token_at = now  # an answer that came whole
        instance.ledger.prefilled_tokens += flight.uncached_tokens
        instance.ledger.prefilled_pairs += flight.pairs
    learning.attempt_ended(world, now, flow, flight, instance, event)
    if flow.charged:
        output = max(0, (flow.decision.output_tokens or event.output_tokens) - flow.said_tokens)
        sharing.settled(flow, flight, outcome, output)
    instance.ledger.leave(flight, now)
    for policy in world.listeners:
        policy.ended(flow.request, instance, flow.decision.output_tokens or event.output_tokens, now)
    last = flow.decision.tries[-1]
    if last.attempt != flight.attempt:  # the other one of two
        last = next(one for one in reversed(flow.decision.tries) if one.attempt == flight.attempt)
    word = outcome._value_  # `value` takes 0.4 us, and every request asks twice
    last.ended_at, last.outcome, last.status, last.why = now, word, event.status, event.why
    world.series.attempt_ended(flow.pool.model, instance.id, last.outcome)
    if outcome is Outcome.DONE:
        instance.heard_at = now
        took_s = seconds(now - flight.dispatched_at)
        instance.mean_request_s += MEAN_REQUEST_GAIN * (took_s - instance.mean_request_s)
        if instance.failure_rate.rate:
            instance.failure_rate.observe(False, now)
        changed = instance.life.attempt_succeeded(flight.attempt)
    elif outcome in FAULTS and event.why != deadlines.LIMIT:
        instance.failure_rate.observe(True, now)
        instance.special = True
        at_once = not event.delivered and now - flight.dispatched_at <= AT_ONCE_NS
        changed = instance.life.attempt_failed(world.settings, flight.attempt, at_once)
    else:
        changed = instance.life.attempt_ended(flight.attempt)
    if changed is not None:
        world.regroup(instance)
    else:
        world.touch(instance)


def _pump(world: World, now: Instant, instance: Instance) -> None:
    """Room may have come free on the instance."""
    if world.held_count:
        for pool in world.pools_of(instance):
            if pool.queue:
                pump(world, now, pool)
