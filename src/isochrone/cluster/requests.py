"""Events of clients: a request arrives, a client leaves."""

from isochrone.cluster import sharing
from isochrone.cluster.endings import finish, refuse
from isochrone.cluster.placement import place, release
from isochrone.cluster.world import RETRY_AFTER_S, Flow, ModelPool, World
from isochrone.nouns import errors
from isochrone.nouns.commands import Abort, Record, Refuse
from isochrone.nouns.decision import Decision
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import Arrived, ClientLeft
from isochrone.nouns.instant import Instant, nanoseconds
from isochrone.nouns.request import Request, Slo
from isochrone.scheduling.admission import slo_of, too_long
from isochrone.scheduling.price import Ask

CLIENT_CLOSED = 499
"""Status in records of a request whose client left (no such answer is ever sent)."""


def arrived(world: World, now: Instant, event: Arrived) -> None:
    """Estimate the request's size, find its pool, place it; or refuse it early and clearly."""
    request = event.request
    pool = pool_for(world, request)
    model = pool.model if pool is not None else request.model
    world.series.arrived(model, request.route)
    prompt_tokens = max(1, world.prompt_tokens.estimate(model, request.size))
    decision = record_of(world, now, request, model, prompt_tokens)
    if pool is None:
        _turn_away(world, now, request, decision, _unknown(world, request))
        return
    flow = flow_of(world, request, decision, pool, event.relay, event.epoch)
    if not pool.members:
        refuse(world, now, flow, errors.no_instance(model, RETRY_AFTER_S))
    elif too_long(request.size, prompt_tokens, pool.longest):
        assert pool.longest is not None
        refuse(world, now, flow, errors.context_length(prompt_tokens, pool.longest))
    elif not place(world, now, flow):
        refuse(world, now, flow, errors.queue_full(world.settings.queue_requests_max, RETRY_AFTER_S))


def begin_again(world: World, now: Instant, flow: Flow) -> None:
    """Place a request that has been moved to a fallback model."""
    if not place(world, now, flow):
        refuse(world, now, flow, errors.queue_full(world.settings.queue_requests_max, RETRY_AFTER_S))


def record_of(world: World, now: Instant, request: Request, model: str, prompt_tokens: int) -> Decision:
    """The record of a request that has just come, kept for explanations."""
    decision = Decision(
        request=request.id,
        model=model,
        path=request.path,
        tenant=request.tenant,
        key=request.key,
        route=request.route,
        stream=request.stream,
        policy=world.policy.name,
        arrived_at=now,
        prompt_tokens_estimate=prompt_tokens,
        max_tokens=request.max_tokens,
        fallback_from=request.meant_for,
        tries=[],
    )
    world.remember(decision)
    return decision


def flow_of(world: World, request: Request, decision: Decision, pool: ModelPool, relay: int, epoch: int) -> Flow:
    """The request as it goes through the cluster, from here to its end."""
    output = 0.0
    if request.generates:
        output = world.expected.mean(pool.model, request.route, request.max_tokens) * request.choices
        decision.output_tokens_estimate = output
    slo = slo_of(request, world.settings)
    ask = Ask(prompt_tokens=decision.prompt_tokens_estimate, output_tokens=output)
    if slo is not None:
        _set_objective(world, decision.arrived_at, ask, slo)
    flow = Flow(request=request, ask=ask, decision=decision, pool=pool, slo=slo, relay=relay, epoch=epoch)
    if pool.fairness is not None or request.tenant != pool.tenant:
        sharing.arrived(world, flow)
    world.flows[request.id] = flow
    return flow


def client_left(world: World, now: Instant, event: ClientLeft) -> None:
    """Forget a held request; abort one in flight (its Ended finishes it)."""
    flow = world.flows.get(event.request)
    if flow is None:
        return
    if flow.flight is not None:
        world.out.append(Abort(flow.flight.attempt, "client left"))
        if flow.rival is not None:
            world.out.append(Abort(flow.rival.attempt, "client left"))
        return
    release(world, flow)
    world.series.left_queue(flow.pool.model, flow.request.route)
    finish(world, now, flow, "client_left", CLIENT_CLOSED)


def _set_objective(world: World, arrived_at: Instant, ask: Ask, slo: Slo) -> None:
    if slo.ttft_s is not None:
        ask.sheddable, ask.ttft_slo_s = slo.sheddable and world.sheds, slo.ttft_s
        if ask.sheddable and world.minds_due:
            ask.first_token_due = arrived_at + nanoseconds(slo.ttft_s)
    if slo.tpot_s is not None and world.settings.cap_ratio is not None:
        ask.step_s_max = world.settings.cap_ratio * slo.tpot_s


def estimate(world: World, request: Request) -> tuple[int, int]:
    """Prompt tokens, and output tokens at most: as many as the client allows, else as many as such answers have."""
    pool = pool_for(world, request)
    model = pool.model if pool is not None else request.model
    prompt_tokens = max(1, world.prompt_tokens.estimate(model, request.size))
    if not request.generates:
        return prompt_tokens, 0
    if request.max_tokens is not None:
        return prompt_tokens, request.max_tokens * request.choices
    return prompt_tokens, round(world.lengths.mean(model, request.route) * request.choices)


def pool_for(world: World, request: Request) -> ModelPool | None:
    """Where the request may go; None: no instance is known to serve its model."""
    if request.model:
        pool = world.pools.get(request.model)
        return pool if pool is not None and pool.known else None
    served = [pool for pool in world.pools.values() if pool.known]
    return served[0] if len(served) == 1 else None


def _unknown(world: World, request: Request) -> ApiError:
    known = sorted(model for model, pool in world.pools.items() if pool.known)
    if not known and world.table.by_id:
        return errors.no_instance(request.model, RETRY_AFTER_S)  # nobody has told its models yet
    return errors.unknown_model(request.model, known) if request.model else errors.model_required(known)


def _turn_away(world: World, now: Instant, request: Request, decision: Decision, error: ApiError) -> None:
    """A request that belongs to no pool."""
    world.series.refused(request.model, request.route, error.code)
    decision.ended_at = now
    decision.outcome, decision.status, decision.reason = "refused", error.status, error.code
    world.out.append(Refuse(request.id, error))
    world.out.append(Record(decision))
