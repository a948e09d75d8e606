"""Reads what instances say about themselves: `/metrics` every second, `/v1/models` at joining and now and then.

A bad scrape is dropped: the cluster keeps the old values with their age. An engine without metrics is asked less and
less often and is served from the gateway's own ledger; the cluster is told once, with the names looked for.
"""

import asyncio
import logging

from isochrone.adapters.engine import detect, models
from isochrone.adapters.engine.exposition import BadScrape
from isochrone.config.build import ScrapePlan
from isochrone.gateway import clock
from isochrone.gateway.asking import ABSENT, Asker, Chance, jittered
from isochrone.nouns.events import ModelsSeen, Observed
from isochrone.nouns.instance import ModelCard, Snapshot
from isochrone.observe.counters import CounterWindow

log = logging.getLogger("isochrone.scrape")

OK, BAD, ABSENT_RESULT, FAILED = "ok", "bad", "absent", "failed"
"""How a scrape ends: read; not to be trusted; the engine has no metrics; no answer."""


class Scraper:
    """The scrapes of one instance."""

    def __init__(self, asker: Asker, instance: str, engine: str, plan: ScrapePlan, chance: Chance) -> None:
        self.results: dict[str, int] = dict.fromkeys((OK, BAD, ABSENT_RESULT, FAILED), 0)
        """Scrapes so far, by how they ended."""
        self.models_wanted = asyncio.Event()
        """Set when the list of models may have changed: the instance came up, or its counters began again."""
        self._asker = asker
        self._instance = instance
        self._engine = engine
        self._plan = plan
        self._chance = chance
        self._counters = CounterWindow()
        self._pause_s = plan.interval_s
        self._said_absent = False
        self._complaint = ""

    async def run(self) -> None:
        """Scrape until cancelled."""
        while True:
            result = await self.scrape()
            if result == ABSENT_RESULT:
                self._pause_s = min(self._pause_s * 2, self._plan.backoff_s_max)
            else:
                self._pause_s = self._plan.interval_s
            await asyncio.sleep(jittered(self._pause_s, self._chance))

    async def scrape(self) -> str:
        """Ask once and tell the cluster; how it ended."""
        result = await self._scrape()
        self.results[result] += 1
        return result

    async def _scrape(self) -> str:
        try:
            status, _, body = await self._asker.http_get(self._instance, "/metrics", self._plan.timeout_s)
        except (OSError, ValueError):
            return FAILED
        taken_at = clock.now()
        if status in ABSENT:
            if not self._said_absent:
                self._said_absent = True
                self._asker.submit(Observed(self._instance, detect.no_metrics(), taken_at, self._counters.resets))
            return ABSENT_RESULT
        if status != 200:
            return FAILED
        try:
            snapshot = detect.decode(body, self._engine)
        except BadScrape as error:
            self._complain(str(error))
            return BAD
        self._said_absent = False
        self._complaint = ""
        self._notice_restart(snapshot)
        self._asker.submit(Observed(self._instance, snapshot, taken_at, self._counters.resets))
        return OK

    def _notice_restart(self, snapshot: Snapshot) -> None:
        before = self._counters.resets
        self._counters.advance(
            {
                "prompt_tokens": snapshot.prompt_tokens,
                "generation_tokens": snapshot.generation_tokens,
                "iterations": snapshot.iterations,
            },
            snapshot.started_at_unix_s,
        )
        if self._counters.resets > before:
            log.info("%s has been restarted in place", self._instance)
            self.models_wanted.set()

    def _complain(self, what: str) -> None:
        """Once for each kind of trouble, not once a second."""
        if what != self._complaint:
            self._complaint = what
            log.warning("%s: bad /metrics, old values are kept: %s", self._instance, what)


class ModelReader:
    """The readings of one instance's `/v1/models`."""

    def __init__(self, asker: Asker, instance: str, plan: ScrapePlan, chance: Chance, wanted: asyncio.Event) -> None:
        self._asker = asker
        self._instance = instance
        self._plan = plan
        self._chance = chance
        self._wanted = wanted
        """Set where the list may have changed: the instance came up, or was restarted."""

    async def run(self) -> None:
        """Read when wanted, and every `models_interval_s`, until cancelled. A failed reading is tried again soon."""
        while True:
            pause_s = jittered(self._plan.models_interval_s, self._chance)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            again_s = self._plan.heartbeat_interval_s
            while await self.read() is None:
                await asyncio.sleep(jittered(again_s, self._chance))
                again_s = min(again_s * 2, self._plan.models_interval_s)

    async def read(self) -> tuple[ModelCard, ...] | None:
        """Ask once and tell the cluster. None: no answer that could be read."""
        try:
            status, _, body = await self._asker.http_get(self._instance, "/v1/models", self._plan.timeout_s)
        except (OSError, ValueError):
            return None
        if status != 200:
            return None
        try:
            cards = models.decode(body)
        except models.BadModels as error:
            log.warning("%s: %s", self._instance, error)
            return None
        self._asker.submit(ModelsSeen(self._instance, cards))
        return cards
