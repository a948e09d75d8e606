"""Fairness between tenants: who was served least goes first.

Virtual token counters (Sheng and others, "Fairness in Serving Large Language Models", OSDI 2024): each tenant's counter
grows with the service that it gets, 1 for an uncached prompt token and 2 for an output token. Within a priority class
the queue serves the waiting tenant with the least counter, and inside the tenant goes by the queue's own key. A tenant
that comes back after a pause is lifted to the least counter of those that are active: being away earns no credit.

Here service is charged when it is bound (prompt and expected output) and corrected when the attempt ends. What an
instance failed before its first token is refunded.

A pool makes one of these when its second tenant shows up; until then nothing is counted, and nobody can be ahead.
"""

import numpy as np

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
TENANTS_MAX = 4096
"""Counters kept in a pool. Of more tenants, one that is idle is forgotten and begins as a newcomer when it returns."""


class Fairness:
    """Counters of one pool's tenants. About 0.3 us for each of arrival, dispatch and end."""

    def __init__(self, tenants_max: int = TENANTS_MAX) -> None:
        self._tenants_max = tenants_max
        self._lines: dict[str, int] = {}
        """Tenant -> its line in the arrays; least recently woken first."""
        self._free: list[int] = []
        self._names: list[str] = []
        self._active: dict[int, int] = {}
        """Line -> requests held or in flight; only where there are any."""
        self.counters = np.zeros(16)
        """Weighted tokens by line."""

    def arrived(self, tenant: str) -> None:
        """A request of the tenant is held or in flight from here on."""
        line = self._lines.get(tenant)
        if line is None:
            line = self._new_line(tenant)
        waiting = self._active.get(line, 0)
        if not waiting:
            self._wake(tenant, line)
        self._active[line] = waiting + 1

    def left(self, tenant: str) -> None:
        """The request is over, however it ended."""
        line = self._lines[tenant]
        waiting = self._active[line] - 1
        if waiting:
            self._active[line] = waiting
        else:
            del self._active[line]

    def charge(self, tenant: str, prompt_tokens: float, output_tokens: float) -> None:
        """Service was bound (or, with negative numbers, was not given after all)."""
        self.counters[self._lines[tenant]] += PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens

    def line(self, tenant: str) -> int:
        """Where the tenant's counter stands."""
        return self._lines[tenant]

    def counter(self, tenant: str) -> float:
        return float(self.counters[self._lines[tenant]])

    @property
    def tenants(self) -> int:
        return len(self._lines)

    @property
    def active(self) -> int:
        """Tenants with a request held or in flight."""
        return len(self._active)

    def _wake(self, tenant: str, line: int) -> None:
        """Lift the counter to the least of the active ones; the tenant was woken last."""
        if self._active:
            self.counters[line] = max(self.counters[line], min(self.counters[other] for other in self._active))
        del self._lines[tenant]
        self._lines[tenant] = line

    def _new_line(self, tenant: str) -> int:
        if len(self._lines) >= self._tenants_max:
            self._forget()
        if self._free:
            line = self._free.pop()
            self._names[line] = tenant
        else:
            line = len(self._names)
            self._names.append(tenant)
            if line == len(self.counters):
                self.counters = np.concatenate([self.counters, np.zeros(line)])
        self.counters[line] = 0.0
        self._lines[tenant] = line
        return line

    def _forget(self) -> None:
        """Make room for one: the idle tenant that was woken longest ago. With none idle the limit gives way: active
        tenants are bounded by the requests that the gateway may hold and run."""
        for tenant, line in self._lines.items():
            if line not in self._active:
                del self._lines[tenant]
                self._free.append(line)
                return
