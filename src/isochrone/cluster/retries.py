"""A request whose attempt has failed: another instance, or the end."""

from isochrone.cluster import deadlines
from isochrone.cluster.endings import finish
from isochrone.cluster.fallback import falls_back
from isochrone.cluster.placement import place
from isochrone.cluster.resume import carry_over, may_continue, pay_for_lost
from isochrone.cluster.world import RETRY_AFTER_S, Flow, World
from isochrone.instances.ledger import Flight
from isochrone.instances.table import Instance
from isochrone.nouns import errors
from isochrone.nouns.commands import Fail, Limits
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import Ended, Outcome
from isochrone.nouns.instant import Instant

FAULTS = frozenset({Outcome.FAILED, Outcome.UNREACHABLE, Outcome.LOST, Outcome.TIMED_OUT})
"""Outcomes that count against the instance."""
RETRYABLE = FAULTS | {Outcome.BUSY, Outcome.ABORTED}
"""Outcomes after which another instance may be asked. BUSY is full, not broken; ABORTED is our own doing: its instance
was removed, drains, or is taken for lost."""
FREE = frozenset({Outcome.ABORTED, Outcome.UNREACHABLE})
"""Outcomes whose next attempt costs no budget: paid for already, or nothing was computed."""


def try_elsewhere(world: World, now: Instant, flow: Flow, flight: Flight, instance: Instance, event: Ended) -> None:
    """Another instance, where nothing was delivered or the rest can be generated there, and the budget allows; else the
    end."""
    flow.tried |= {flight.slot}
    spent = False
    if event.why != deadlines.LIMIT and (not event.delivered or may_continue(world, event)):
        if event.delivered:
            carry_over(flow, event.output_tokens)
        if flow.ordinal < world.settings.attempts_max and any(slot not in flow.tried for slot in flow.pool.slots):
            spent = not _pays(world, now, flow, flight, instance, event.outcome)
            if not spent and place(world, now, flow):
                return
    if flow.request.fallbacks and not event.delivered and event.why != deadlines.LIMIT and falls_back(world, flow):
        return
    error = _error(world, flow, event, spent)
    world.out.append(Fail(flow.request.id, error))
    finish(world, now, flow, "failed", error.status if error else event.status, error.code if error else event.why)


def _pays(
    world: World, now: Instant, flow: Flow, flight: Flight, instance: Instance, outcome: Outcome
) -> bool:  # fmt: skip
    if outcome in FREE:
        return True
    if outcome is Outcome.LOST:
        return pay_for_lost(world, now, flow, flight, instance)
    return world.budget.spend(world.settings, now, flow.ask.prompt_tokens)


def _error(world: World, flow: Flow, event: Ended, spent: bool) -> ApiError | None:
    """What the client is told; None: what the instance said, or that its answer broke off."""
    if event.why == deadlines.LIMIT and flow.request.limit_s is not None:
        return errors.deadline_exceeded(flow.request.limit_s, True)
    if event.delivered or event.outcome is Outcome.BUSY or event.status:
        return None
    if event.outcome is Outcome.TIMED_OUT:
        limit = event.why if event.why in Limits.__struct_fields__ else "first_token_s"
        return errors.timed_out(limit, getattr(world.limits, limit) or 0.0)
    if spent:
        return errors.retries_spent(RETRY_AFTER_S)
    return errors.instance_failed(f"{flow.ordinal} attempts, the last one {event.outcome.value}", RETRY_AFTER_S)
