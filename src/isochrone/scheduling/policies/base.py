"""What a policy is."""

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

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
    the policy's own state, and changes neither. What it must remember (a round-robin pointer) moves in `chosen`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    holds: ClassVar[bool]
    """Late binding: the gateway may keep a request until a good place is free."""

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced: ...

    def chosen(self, request: Request, pool: Pool, position: int) -> None:
        """The request goes to this row."""

    def terms(self, ask: Ask, row: Row, position: int, price: float, now: Instant) -> dict[str, float]:
        """The price taken apart, for explanations; the terms sum to the price."""
        ...


class Plain:
    """Base for policies whose price is one number with a meaning of its own."""

    holds: ClassVar[bool] = False
    term: ClassVar[str] = "price"

    def chosen(self, request: Request, pool: Pool, position: int) -> None:
        return None

    def terms(self, ask: Ask, row: Row, position: int, price: float, now: Instant) -> dict[str, float]:
        return {self.term: price}
