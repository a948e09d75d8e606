"""What a policy is."""

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from isochrone.instances.table import Instance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row

Priced: TypeAlias = Sequence[float] | np.ndarray

NEVER = float("inf")
"""Price of a candidate that must not be taken."""


class Policy(Protocol):
    """Prices candidates; smaller is better, `inf` means never.

    `prices` returns one number for each row of the pool, in the order of the rows, reads nothing but its arguments and
    the policy's own state, and changes neither. What it must remember moves in the calls that say what happened:
    `chosen` (a round-robin pointer), and the four behind `listens`.
    """

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    @property
    def holds(self) -> bool:
        """Late binding: the gateway may keep a request until a good place is free."""
        ...

    @property
    def priced_by_queue(self) -> bool:
        """Its prices are those that the queue's matrix holds; any other policy that holds is asked again."""
        ...

    @property
    def ties_by_hit(self) -> bool:
        """Of equal prices the deeper hit is taken. False: chance alone, for a policy that knows of no cache."""
        ...

    @property
    def listens(self) -> bool:
        """Wants to hear of scrapes, first tokens, ends and departures. Policies that do not cost nothing there."""
        ...

    @property
    def scrape_interval_s(self) -> float | None:
        """How often the policy's own system reads metrics; a simulation scrapes as often. None: the settings say."""
        ...

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced: ...

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        """The request goes to this row."""

    def observed(self, instance: Instance, now: Instant) -> None:
        """A scrape of the instance was taken in."""

    def first_token(self, request: Request, instance: Instance, now: Instant) -> None:
        """The request's prefill is over (streams only)."""

    def ended(self, request: Request, instance: Instance, output_tokens: int, now: Instant) -> None:
        """An attempt of the request is over, however it ended."""

    def gone(self, instance: Instance) -> None:
        """The instance was removed; its slot may stand for another one from now on."""

    def terms(self, ask: Ask, row: Row, position: int, price: float, now: Instant) -> dict[str, float]:
        """The price taken apart, for explanations; the terms sum to the price."""
        ...


class Quiet:
    """Base of every policy: holds nothing, hears nothing."""

    holds: ClassVar[bool] = False
    priced_by_queue: ClassVar[bool] = False
    ties_by_hit: ClassVar[bool] = True
    listens: ClassVar[bool] = False
    scrape_interval_s: ClassVar[float | None] = None

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        return None

    def observed(self, instance: Instance, now: Instant) -> None:
        return None

    def first_token(self, request: Request, instance: Instance, now: Instant) -> None:
        return None

    def ended(self, request: Request, instance: Instance, output_tokens: int, now: Instant) -> None:
        return None

    def gone(self, instance: Instance) -> None:
        return None


class Plain(Quiet):
    """Base for policies whose price is one number with a meaning of its own."""

    term: ClassVar[str] = "price"

    def terms(self, ask: Ask, row: Row, position: int, price: float, now: Instant) -> dict[str, float]:
        return {self.term: price}
