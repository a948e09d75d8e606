"""Another policy's prices behind our admission: late binding, the held queue's order, shedding."""

from isochrone.instances.table import Instance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Policy, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row

SUFFIX = "+admission"


class Admitted:
    """`NAME+admission`: the policy NAME chooses an instance, we say when a request may go and when it is refused.

    It tells what a policy's choice of place is worth from what holding requests back is worth.
    """

    holds = True
    priced_by_queue = False

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self.name = inner.name + SUFFIX
        self.summary = f"{inner.summary}; held, ordered and shed by our queue"
        self.ties_by_hit = inner.ties_by_hit
        self.listens = inner.listens
        self.scrape_interval_s = inner.scrape_interval_s

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        return self._inner.prices(ask, request, pool, now)

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        self._inner.chosen(ask, request, pool, position, now)

    def observed(self, instance: Instance, now: Instant) -> None:
        self._inner.observed(instance, now)

    def first_token(self, request: Request, instance: Instance, now: Instant) -> None:
        self._inner.first_token(request, instance, now)

    def ended(self, request: Request, instance: Instance, output_tokens: int, now: Instant) -> None:
        self._inner.ended(request, instance, output_tokens, now)

    def gone(self, instance: Instance) -> None:
        self._inner.gone(instance)

    def terms(self, ask: Ask, row: Row, position: int, price: float, now: Instant) -> dict[str, float]:
        return self._inner.terms(ask, row, position, price, now)
