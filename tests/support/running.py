"""Runs a test's coroutine on the loop that the gateway uses, with a limit, and a gateway in front of fake engines."""

import asyncio
import dataclasses
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

import uvloop

from isochrone.access.aliases import Aliases
from isochrone.cluster import Cluster
from isochrone.config.driver import Access, Link, RelayLimits
from isochrone.gateway.app import Gateway, GatewaySettings
from isochrone.nouns.decision import Decision
from isochrone.nouns.events import ModelsSeen, Probed, Verdict
from isochrone.nouns.instance import InstanceSpec, ModelCard
from isochrone.nouns.settings import Settings
from tests.support.fake_engine import FakeEngine

T = TypeVar("T")
LIMIT_S = 30.0
"""A test that waits longer than this for anything has failed."""

QUICK = RelayLimits(
    head_s_max=0.15, body_s_max=0.15, idle_s_max=0.3, upstream_idle_s_max=0.1, client_write_s_max=0.2,
    linger_s_max=0.05, sweep_s=0.01,
)  # fmt: skip
"""Limits in time, scaled from seconds to hundredths."""


def run(test: Coroutine[Any, Any, T], limit_s: float = LIMIT_S) -> T:
    """Run the coroutine on uvloop. An exception that no one catches, in any callback or task, fails the test."""
    uncaught: list[dict[str, Any]] = []

    async def limited() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: uncaught.append(context))
        async with asyncio.timeout(limit_s):
            return await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(limited())
    gc.collect()  # a task that failed unseen speaks up when it is collected
    assert not uncaught, uncaught
    return result


class Served:
    """A gateway that runs, and what it recorded."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.records: list[Decision] = []
        gateway.records.append(self.records.append)

    @property
    def port(self) -> int:
        return self.gateway.port

    def assert_nothing_left(self) -> None:
        """Every account that a request enters is back to zero."""
        gateway = self.gateway
        assert not gateway.brain.requests
        assert not gateway.brain.attempts
        assert gateway.bodies.held_bytes == 0
        assert gateway.kept.held_bytes == 0
        assert gateway.brain.faults == 0
        assert gateway.cluster.in_flight() == 0
        if gateway.door is not None:
            assert len(gateway.door.quotas) == 0
            for account in gateway.door.quotas.accounts.values():
                assert (account.running, account.reserved_tokens) == (0, 0)
        for view in gateway.cluster.instances():
            assert (view.in_flight, view.pending_prefill_tokens, view.kv_tokens) == (0, 0, 0)
            assert view.pending_prefill_s == 0

    async def until_idle(self) -> None:
        """Wait until no request is open."""
        while self.gateway.brain.requests:
            await asyncio.sleep(0.001)

    async def until_decision(self, request: str, is_so: Callable[[Decision], object]) -> Decision:
        """Wait until the record of this request is as wanted."""
        cluster = self.gateway.cluster
        assert isinstance(cluster, Cluster)
        while (decision := cluster.decision(request)) is None or not is_so(decision):
            await asyncio.sleep(0.001)
        return decision

    async def until_alone(self) -> None:
        """Wait until no client is connected either."""
        while self.gateway.connections or self.gateway.brain.requests:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(
    *engines: FakeEngine,
    limits: RelayLimits = QUICK,
    settings: Settings | None = None,
    inject: bool = True,
    models: tuple[str, ...] = ("m",),
    longest: int | None = 8192,
    access: Access | None = None,
    kind: str = "auto",
    half_close: bool = False,
    aliases: Aliases | None = None,
) -> AsyncIterator[Served]:
    """A gateway on a free port in front of these engines, all of them ready."""
    gateway = Gateway(
        Cluster(settings or Settings(policy="round-robin"), Random(7)),
        GatewaySettings(
            limits=limits, inject=inject, access=access or Access(), half_close=half_close, aliases=aliases or Aliases()
        ),
    )
    for engine in engines:
        join(gateway, engine.id, engine.url, models, longest, kind=kind)
    await gateway.start("127.0.0.1", 0)
    served = Served(gateway)
    try:
        yield served
    finally:
        await gateway.close()


def join(
    gateway: Gateway,
    instance: str,
    url: str,
    models: tuple[str, ...] = ("m",),
    longest: int | None = 8192,
    link: Link | None = None,
    kind: str = "auto",
) -> None:
    """Make an instance known and ready, without waiting for heartbeats. `longest`: its context in tokens; `kind`: its
    engine, where the gateway is to know it before the first scrape."""
    gateway.add_instance(InstanceSpec(id=instance, url=url, engine=kind), link)
    gateway.submit(ModelsSeen(instance, tuple(ModelCard(model, longest) for model in models)))
    for _ in range(gateway.cluster.settings.heartbeat_ready_answers):
        gateway.submit(Probed(instance, Verdict.OK))


def quick(**changes: Any) -> RelayLimits:
    """QUICK with changes."""
    return dataclasses.replace(QUICK, **changes)
