"""Tenants' counters, kept along the way of their requests. Nothing is counted in a pool that one tenant uses."""

from isochrone.cluster.world import Flow, World
from isochrone.instances.ledger import Flight
from isochrone.nouns.events import Outcome
from isochrone.scheduling.fairness import Fairness

GIVEN = frozenset({Outcome.DONE, Outcome.CLIENT_LEFT})
"""Outcomes after which a prompt's prefill counts as service even if no token came of it."""


def arrived(world: World, flow: Flow) -> None:
    """A request joins its pool. Called where the pool counts, or the tenant is not the one that it knows."""
    pool, tenant = flow.pool, flow.request.tenant
    if pool.fairness is None:
        if pool.tenant is None or "fairness" in world.settings.without:
            pool.tenant = tenant
            return
        _begin(world, flow)
        return
    pool.fairness.arrived(tenant)
    flow.counted = True


def _begin(world: World, newcomer: Flow) -> None:
    """The second tenant of a pool: count from here on, whoever is here already with nothing served so far."""
    pool = newcomer.pool
    fairness = pool.fairness = Fairness()
    for flow in (*(one for one in world.flows.values() if one.pool is pool), newcomer):
        if not flow.counted:
            fairness.arrived(flow.request.tenant)
            flow.counted = True
    pool.queue.share(fairness, lambda held: world.flows[held.request].request.tenant)


def bound(flow: Flow, flight: Flight) -> None:
    """Service is bound: charge the prompt, and the output that is expected."""
    fairness = flow.pool.fairness
    assert fairness is not None
    fairness.charge(flow.request.tenant, flight.uncached_tokens, flight.expected_output)
    flow.charged = True


def settled(flow: Flow, flight: Flight, outcome: Outcome, output_tokens: int) -> None:
    """The attempt is over: charge what came of it, and nothing for a prompt that the instance failed."""
    fairness = flow.pool.fairness
    assert fairness is not None
    given = flight.decoding or outcome in GIVEN
    refund = 0 if given else flight.uncached_tokens
    fairness.charge(flow.request.tenant, -refund, output_tokens - flight.expected_output)
    flow.charged = False


def left(flow: Flow) -> None:
    """The request is over."""
    fairness = flow.pool.fairness
    assert fairness is not None
    fairness.left(flow.request.tenant)
