"""Keeps the doorkeeper's keys as the store has them, and the store's usage as the gateway counts it.

The store is asked from a thread, so that a slow disk or network holds up no request. While it cannot be reached the
known keys stay in force, new and revoked ones wait, and usage gathers here.
"""

import asyncio
import contextlib
import logging

from isochrone.access.keys import KeyRing
from isochrone.adapters.keystore import KeyStore, StoreError, open_store
from isochrone.config.driver import KeyPlan
from isochrone.gateway import clock
from isochrone.nouns.decision import Decision
from isochrone.observe.families import Family
from isochrone.observe.usage import UsageRow, UsageTable

DAY_S = 86_400

log = logging.getLogger("isochrone.keys")


class KeyWatch:
    """One task that goes back and forth between the gateway and the store. Without one, usage is counted only here."""

    def __init__(self, ring: KeyRing, plan: KeyPlan) -> None:
        self.usage = UsageTable()
        self.errors = 0
        """Calls to the store that failed."""
        self._ring = ring
        self._store: KeyStore | None = None
        self._plan = plan
        self._version = 0
        self._failing: set[str] = set()
        """What has failed and was complained about."""
        self._lock = asyncio.Lock()
        """The store takes one call at a time."""
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def record(self, decision: Decision) -> None:
        """A sink of records."""
        self.usage.add(decision, int(clock.wall_s()) // DAY_S)

    def start(self) -> None:
        """Read all keys, before anybody is served, and follow the store from now on. Raises StoreError."""
        if self._plan.file is None and self._plan.redis is None:
            return
        self._store = open_store(self._plan)
        changes = self._store.changes(0)
        self._ring.replace(changes.keys)
        self._version = changes.version
        self._task = asyncio.get_running_loop().create_task(self._run(), name="key store")

    async def close(self) -> None:
        """Write the last usage, and close the store."""
        if self._task is not None:
            self._closing.set()  # not cancelled: a call that runs in its thread would go on, beside the next one
            await self._task
            await self.flush()
        if self._store is not None:
            self._store.close()

    async def reload(self) -> None:
        """Take in what has changed in the store."""
        assert self._store is not None
        async with self._lock:
            try:
                changes = await asyncio.to_thread(self._store.changes, self._version)
            except StoreError as error:
                self._complain("reading keys", error)
                return
        self._failing.discard("reading keys")
        (self._ring.replace if changes.whole else self._ring.update)(changes.keys)
        self._version = changes.version

    async def flush(self) -> None:
        """Write to the store what was used since the last time."""
        rows = self.usage.take() if self._store is not None else []
        if not rows:
            return
        assert self._store is not None
        async with self._lock:
            try:
                await asyncio.to_thread(self._store.add_usage, rows)
            except StoreError as error:
                self.usage.give_back(rows)
                self._complain("writing usage", error)
                return
        self._failing.discard("writing usage")

    async def used(self, first_day: int, last_day: int) -> list[UsageRow]:
        """All usage of these days, up to this moment."""
        if self._store is None:
            return [row for row in self.usage.pending() if first_day <= row.day <= last_day]
        await self.flush()
        async with self._lock:
            return await asyncio.to_thread(self._store.usage, first_day, last_day)

    def families(self) -> list[Family]:
        """Metrics of keys and usage."""
        return [
            *self.usage.families(),
            Family("isochrone_keys", "gauge", "API keys in force.", (), [((), len(self._ring))]),
            Family(
                "isochrone_key_store_errors_total",
                "counter",
                "Calls to the store of keys and usage that failed.",
                (),
                [((), self.errors)],
            ),
        ]

    async def _run(self) -> None:
        since_flush_s = 0.0
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._plan.reload_s)
            await self.reload()
            since_flush_s += self._plan.reload_s
            if since_flush_s >= self._plan.flush_s:
                since_flush_s = 0.0
                await self.flush()

    def _complain(self, what: str, error: StoreError) -> None:
        """Once, until it works again."""
        self.errors += 1
        if what not in self._failing:
            log.warning("%s failed: %s; known keys stay in force, usage is kept until it works again", what, error)
        self._failing.add(what)
