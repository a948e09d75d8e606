"""What a policy reads of every member of a large pool, as arrays: numbers x positions, without asking each one anew.

An event on an instance makes its row be derived anew before the next decision, and a row is never changed in place. So
where the row is still the object that was seen last, nothing on the instance has changed, its ledger included. Metrics
pages are another matter: a scrape can be taken in before the row says so; a policy that reads them asks the instance.
"""

from collections.abc import Callable
from itertools import compress
from operator import is_not
from weakref import WeakKeyDictionary

import numpy as np

from isochrone.instances.table import Instance
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Row

Read = Callable[[Row, Instance], tuple[float, ...]]


class Followed:
    """Numbers of each member by what `read` says of one; a memory, not a state. For pools that have `places`."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._seen: WeakKeyDictionary[Pool, tuple[list[Row], np.ndarray]] = WeakKeyDictionary()
        """Rows by position, and the numbers read with them; a pool's go when the pool goes."""

    def of(self, pool: Pool) -> np.ndarray:
        """Numbers x positions, as float64: counts are exact up to 2**53. Not to be written to."""
        rows = pool.rows
        seen, numbers = self._seen.get(pool, ([], np.empty((0, 0))))
        if len(seen) != len(rows):
            numbers = self._column(pool, range(len(rows)))
        else:
            changed = list(compress(range(len(rows)), map(is_not, rows, seen)))
            if not changed:
                return numbers
            numbers[:, changed] = self._column(pool, changed)
        self._seen[pool] = (rows.copy(), numbers)
        return numbers

    def _column(self, pool: Pool, positions: range | list[int]) -> np.ndarray:
        read, rows, members = self._read, pool.rows, pool.members
        return np.array([read(rows[position], members[position]) for position in positions], dtype=np.float64).T.copy()


def waiting_tokens(row: Row, instance: Instance) -> tuple[float, ...]:
    """Uncached prompt tokens sent and without a first token."""
    return (instance.ledger.waiting_tokens,)


def in_flight(row: Row, instance: Instance) -> tuple[float, ...]:
    """Requests that this gateway has there."""
    return (instance.ledger.in_flight,)


def hits_of(hits: object) -> np.ndarray | float:
    """Cached prompt tokens by position (`Ask.hits`), as numbers to reckon with."""
    return 0.0 if hits is None else np.asarray(hits, dtype=np.float64)
