"""Heartbeats: one loop an instance, so that a slow one delays no other.

Only what came back is told to the cluster. Whether a miss means anything (a busy engine answers late while its tokens
still flow) is decided there.
"""

import asyncio
from collections.abc import Callable

from isochrone.config.build import ScrapePlan
from isochrone.gateway.asking import ABSENT, Asker, Chance, jittered
from isochrone.gateway.descriptors import is_ours
from isochrone.nouns.events import Probed, Verdict

HEALTH = "/health"
DOWN_SHARE = 0.5
"""Of the interval, while an instance does not answer: it is to be back within 2 s of being well, jitter included."""
FALLBACK = "/v1/models"
"""Asked instead where an engine has no /health."""


class Heart:
    """The heartbeats of one instance."""

    def __init__(
        self, asker: Asker, instance: str, plan: ScrapePlan, chance: Chance, revived: Callable[[], None]
    ) -> None:
        self.verdicts: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
        """Heartbeats so far, by what came back."""
        self._asker = asker
        self._instance = instance
        self._plan = plan
        self._chance = chance
        self._revived = revived
        """Called when the instance answers for the first time, or again after it did not."""
        self._path = HEALTH
        self._alive = False

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await self.beat()
            share = 1.0 if self._alive else DOWN_SHARE
            await asyncio.sleep(jittered(share * self._plan.heartbeat_interval_s, self._chance))

    async def beat(self) -> Verdict | None:
        """Ask once and tell the cluster. None: we could not ask, which is no news of the instance."""
        verdict = await self._ask()
        if verdict is None:
            return None
        self.verdicts[verdict] += 1
        alive = verdict is Verdict.OK
        revived = alive and not self._alive
        self._alive = alive
        self._asker.submit(Probed(self._instance, verdict))
        if revived:
            self._revived()
        return verdict

    async def _ask(self) -> Verdict | None:
        try:
            status, _, _ = await self._asker.http_get(self._instance, self._path, self._plan.heartbeat_timeout_s)
        except TimeoutError:
            return Verdict.TIMEOUT
        except (OSError, ValueError) as error:  # refused, reset, or not HTTP
            return None if is_ours(error) else Verdict.REFUSED
        if status in ABSENT and self._path == HEALTH:
            self._path = FALLBACK
            return await self._ask()
        return Verdict.OK if 200 <= status < 300 else Verdict.REFUSED
