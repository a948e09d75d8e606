"""A request that its model's instances cannot serve goes to a fallback model of its alias: before the first byte of an
answer, each model once, in the order of the configuration.

Whoever would end the request asks `falls_back` first. It moves the request to the other model's pool and no further:
it is placed when the event at hand has been handled.
"""

import msgspec

from isochrone.cluster import sharing
from isochrone.cluster.world import Flow, World
from isochrone.scheduling.admission import too_long


def falls_back(world: World, flow: Flow) -> bool:
    """Move the request to its next fallback model that has an instance; False where there is none."""
    request = flow.request
    while request.fallbacks:
        model = request.fallbacks[0]
        # Prompt blocks are hashed under the model's name: those of another model would match nothing.
        request = msgspec.structs.replace(
            request, model=model, fallbacks=request.fallbacks[1:], blocks=(), hashed_bytes=0
        )
        pool = world.pools.get(model)
        prompt_tokens = max(1, world.prompt_tokens.estimate(model, request.size))
        if pool is None or not pool.members or too_long(request.size, prompt_tokens, pool.longest):
            continue
        if flow.counted:
            sharing.left(flow)
            flow.counted = False
        decision = flow.decision
        decision.fallback_from = decision.fallback_from or decision.model
        world.series.fell_back(decision.model)
        decision.model = model
        flow.request, flow.pool, flow.tried = request, pool, frozenset()
        flow.ask.prompt_tokens, flow.ask.hits = prompt_tokens, None
        if pool.fairness is not None or request.tenant != pool.tenant:
            sharing.arrived(world, flow)
        world.series.arrived(model, request.route)
        world.fallen.append(flow)
        return True
    flow.request = request
    return False
