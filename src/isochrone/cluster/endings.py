"""How requests end: each exactly once, with a record."""

from isochrone.cluster import sharing
from isochrone.cluster.fallback import falls_back
from isochrone.cluster.world import Flow, World
from isochrone.nouns.commands import Fail, Record, Refuse
from isochrone.nouns.errors import ApiError
from isochrone.nouns.instant import Instant, seconds


def refuse(world: World, now: Instant, flow: Flow, error: ApiError) -> None:
    """Answer with an error, unless there is a fallback model; no attempt is in flight and none will be. A request that
    an instance has had, and that finds no other one in time, has failed: its client may have a part of the answer."""
    if flow.request.fallbacks and not flow.continues and falls_back(world, flow):
        return
    if flow.ordinal:
        world.out.append(Fail(flow.request.id, error))
        finish(world, now, flow, "failed", error.status, error.code)
        return
    world.series.refused(flow.request.model, flow.request.route, error.code)
    world.out.append(Refuse(flow.request.id, error))
    finish(world, now, flow, "refused", error.status, error.code)


def finish(world: World, now: Instant, flow: Flow, outcome: str, status: int, reason: str = "") -> None:
    """The request is over: close its record and forget it."""
    decision = flow.decision
    decision.ended_at = now
    decision.outcome, decision.status, decision.reason = outcome, status, reason
    del world.flows[flow.request.id]
    if flow.counted:
        sharing.left(flow)
    if flow.ordinal:
        _count(world, now, flow)
    world.out.append(Record(decision))


def _count(world: World, now: Instant, flow: Flow) -> None:
    decision = flow.decision
    e2e_s = seconds(now - decision.arrived_at)
    ttft_s = tpot_s = None
    output = decision.output_tokens or 0
    if decision.first_token_at is not None:
        ttft_s = seconds(decision.first_token_at - decision.arrived_at)
        if flow.request.stream and output > 1:
            tpot_s = (e2e_s - ttft_s) / (output - 1)
        if flow.request.stream and decision.forecast_ttft_s is not None and flow.ordinal == 1:
            real_s = ttft_s - decision.queue_wait_s
            world.series.priced(flow.pool.model, {}, decision.forecast_ttft_s - real_s, None)
    world.series.request_done(
        flow.pool.model,
        flow.request.route,
        decision.winner or "",
        decision,
        e2e_s,
        ttft_s,
        tpot_s,
        decision.prompt_tokens if decision.prompt_tokens is not None else decision.prompt_tokens_estimate,
        output,
        decision.cached_tokens or 0,
    )
