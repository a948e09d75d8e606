"""All loops that ask instances: three tasks each (heartbeat, metrics, models), begun and ended with the instance."""

import asyncio
import logging
from dataclasses import dataclass

from isochrone.config.build import ScrapePlan
from isochrone.gateway.asking import Asker, Chance
from isochrone.gateway.probe import Heart
from isochrone.gateway.scrape import ModelReader, Scraper
from isochrone.nouns.instance import InstanceSpec

log = logging.getLogger("isochrone.watch")


@dataclass(frozen=True, slots=True)
class Watched:
    """What is kept of one instance."""

    spec: InstanceSpec
    heart: Heart
    scraper: Scraper
    tasks: tuple["asyncio.Task[None]", ...]


class Watch:
    """Begins to ask an instance when it is added and stops when it is removed."""

    def __init__(self, asker: Asker, plan: ScrapePlan, chance: Chance) -> None:
        self.instances: dict[str, Watched] = {}
        """By instance id: bounded by the number of instances."""
        self._asker = asker
        self._plan = plan
        self._chance = chance

    def add(self, spec: InstanceSpec) -> None:
        """Ask this instance from now on; one that was known before is asked anew. Needs a running event loop."""
        self.remove(spec.id)
        scraper = Scraper(self._asker, spec.id, spec.engine, self._plan, self._chance)
        reader = ModelReader(self._asker, spec.id, self._plan, self._chance, scraper.models_wanted)
        heart = Heart(self._asker, spec.id, self._plan, self._chance, scraper.models_wanted.set)
        loop = asyncio.get_running_loop()
        tasks = tuple(
            loop.create_task(coroutine, name=f"{what} of {spec.id}")
            for what, coroutine in (("heartbeat", heart.run()), ("scrape", scraper.run()), ("models", reader.run()))
        )
        for task in tasks:
            task.add_done_callback(_report)
        self.instances[spec.id] = Watched(spec, heart, scraper, tasks)

    def remove(self, instance: str) -> None:
        """Ask it no more."""
        watched = self.instances.pop(instance, None)
        if watched is not None:
            for task in watched.tasks:
                task.cancel()

    def configure(self, plan: ScrapePlan) -> None:
        """Other intervals: all are asked anew."""
        self._plan = plan
        for watched in list(self.instances.values()):
            self.add(watched.spec)

    async def close(self) -> None:
        """Ask nobody any more, and wait until the last question is given up."""
        tasks = [task for watched in self.instances.values() for task in watched.tasks]
        for instance in list(self.instances):
            self.remove(instance)
        await asyncio.gather(*tasks, return_exceptions=True)


def _report(task: "asyncio.Task[None]") -> None:
    """These loops end only by being cancelled; anything else is a bug of ours, and must not go unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s has ended: %r", task.get_name(), error, exc_info=error)
