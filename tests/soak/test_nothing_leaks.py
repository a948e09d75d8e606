"""Twenty minutes of streams, one client in ten leaving early, engines killed, removed and added: nothing stays behind.

`SOAK_MINUTES` makes it shorter or longer; 100,000 streamed chunks a minute are wanted, two million by default, and on a
slow machine it goes on until they are there. Gateway and clients share this process, so that its tasks, files and
memory are those of both; both have to be flat.
"""

import asyncio
import gc
import os
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from isochrone.gateway.service import Service
from tests.support.calls import call
from tests.support.emulated import Emulated, emulated
from tests.support.raw_client import RawClient, post
from tests.support.running import run
from tests.support.service import ask as ask_admin
from tests.support.service import serving

MINUTES = float(os.environ.get("SOAK_MINUTES", "20"))
CHUNKS = int(100_000 * MINUTES)
SLOWER_MAX = 8.0
"""Times the minutes that the chunks may take: more is no slow machine but a fault."""
CLIENTS = 48
LEAVE_RATIO = 0.1
CHANGE_S = 5.0
"""From one change among the instances to the next."""
MEMORY_RATIO_MAX = 1.05
"""Resident memory in the last quarter over that in the second: the first fills what has a limit."""
CONFIG: dict[str, Any] = {
    "heartbeat": {"interval_s": 0.5, "timeout_s": 5.0},
    "scrape": {"interval_s": 0.5, "timeout_s": 5.0},
    "limits": {"decisions_max": 200, "upstream_idle_s_max": 1.0, "idle_s_max": 5.0},
}
"""Few records are kept: else they alone would grow for an hour."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class Crowd:
    """Clients that ask one stream after the other, until they are told to stop."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.chunks = 0
        self.ends: Counter[str] = Counter()
        self.over = False

    async def client(self, number: int) -> None:
        chance = random.Random(number)
        while not self.over:
            async with RawClient(self.port) as one:
                one.send(post(self._body(chance), "/v1/completions"))
                if chance.random() < LEAVE_RATIO:
                    self.ends[await self._leave(one, chance)] += 1
                else:
                    self.ends[await self._read(one)] += 1

    def _body(self, chance: random.Random) -> bytes:
        """One of 200 prompts, so that prefix indices fill and then stay."""
        text = f"Question number {chance.randrange(200)}. " * 20
        return b'{"model":"m","stream":true,"ignore_eos":true,"max_tokens":%d,"prompt":"%b"}' % (
            chance.randint(50, 250), text.encode(),
        )  # fmt: skip

    async def _leave(self, one: RawClient, chance: random.Random) -> str:
        """At some byte of the answer, or before its first, with FIN or RST."""
        for _ in range(chance.randrange(20)):
            data = await one.reader.read(4096)
            self.chunks += data.count(b"data: {")
        one.reset() if chance.random() < 0.5 else one.close()
        return "left"

    async def _read(self, one: RawClient) -> str:
        """How it ended, as the client sees it."""
        answer = await one.answer()
        if answer.status == 503 and "retry-after" in answer.headers:
            await asyncio.sleep(0.2)
            return "told to come back"
        self.chunks += answer.body.count(b"data: {")
        well = answer.status == 200 and answer.whole and answer.body.endswith(b"data: [DONE]\n\n")
        return "answered" if well else f"status {answer.status}, whole {answer.whole}: {answer.body[-200:]!r}"


async def ready(service: Service, count: int) -> None:
    while [view.state for view in service.cluster.instances()] != ["ready"] * count:
        await asyncio.sleep(0.05)


async def come_and_go(service: Service, engines: list[Emulated], crowd: Crowd) -> None:
    """In turn: one is killed and started again; one is removed, at once or when idle, and added anew."""
    admin = f"http://127.0.0.1:{service.admin_port}"
    number = 0
    while not crowd.over:
        await asyncio.sleep(CHANGE_S)
        engine = engines[number % len(engines)]
        if number % 3 == 0:
            engine.kill()
            await asyncio.sleep(1.0)
            engine.start()
            await asyncio.to_thread(engine.until_up)
        else:
            name = engine.url.removeprefix("http://")
            drain = "true" if number % 3 == 1 else "false"
            removed = await asyncio.to_thread(call, admin, "DELETE", f"/admin/instances/{name}?drain={drain}")
            assert removed.status == 202
            while any(view.id == name for view in service.cluster.instances()):
                await asyncio.sleep(0.05)
            added = await asyncio.to_thread(call, admin, "POST", "/admin/instances", {"url": engine.url})
            assert added.status == 201, added.body
        await ready(service, len(engines))
        number += 1


async def quiet(service: Service) -> tuple[int, int]:
    """Tasks and open files once no request runs and idle connections are closed: the fewest of some looks, since
    heartbeats and scrapes come and go."""
    gateway = service.gateway
    while gateway.brain.requests or gateway.connections or any(pool.idle for pool in gateway.pools.values()):
        await asyncio.sleep(0.05)
    gc.collect()
    looks = []
    for _ in range(40):
        looks.append((len(asyncio.all_tasks()), open_files()))
        await asyncio.sleep(0.05)
    return min(tasks for tasks, _ in looks), min(files for _, files in looks)


async def soaked(service: Service, crowd: Crowd) -> list[float]:
    """Resident memory, in MiB, read once a second until there were minutes and chunks enough."""
    loop, memory = asyncio.get_running_loop(), []
    begun = loop.time()
    while (lasts_s := loop.time() - begun) < 60 * MINUTES or crowd.chunks < CHUNKS:
        assert lasts_s < 60 * MINUTES * SLOWER_MAX, f"only {crowd.chunks} of {CHUNKS} chunks; {crowd.ends}"
        await asyncio.sleep(1.0)
        memory.append(resident_mib())
    return memory


def test_nothing_stays_behind(tmp_path: Path) -> None:
    async def test() -> None:
        with emulated(tmp_path, 4) as engines:
            instances = [{"url": engine.url} for engine in engines]
            async with serving(**CONFIG, instances=instances) as service:
                await ready(service, len(engines))
                before = await quiet(service)
                crowd = Crowd(service.port)
                clients = [asyncio.ensure_future(crowd.client(number)) for number in range(CLIENTS)]
                changes = asyncio.ensure_future(come_and_go(service, engines, crowd))
                memory = await soaked(service, crowd)
                crowd.over = True
                await asyncio.gather(changes, *clients)
                await look_back(service, crowd, memory, before)

    run(test(), limit_s=60 * MINUTES * SLOWER_MAX + 180)


async def look_back(service: Service, crowd: Crowd, memory: list[float], before: tuple[int, int]) -> None:
    quarter = len(memory) // 4
    second, last = statistics.mean(memory[quarter : 2 * quarter]), statistics.mean(memory[-quarter:])
    after = await quiet(service)
    print(f"{len(memory)} s, {crowd.chunks} chunks, {dict(crowd.ends)}, {service.gateway.kept.resumed} continuations")
    print(f"memory {second:.1f} -> {last:.1f} MiB; tasks and open files {before} -> {after}")
    assert set(crowd.ends) <= {"answered", "left", "told to come back"}, crowd.ends
    share = crowd.ends["left"] / crowd.ends.total()
    assert 0.05 < share < 0.2
    assert crowd.ends["told to come back"] < 0.05 * crowd.ends.total()
    metrics = (await ask_admin(service, "/metrics")).body.decode()
    counts = [line for line in metrics.splitlines() if line.startswith("isochrone_instance_in_flight_requests{")]
    assert len(counts) == 4
    assert all(line.endswith((" 0.0", " 0")) for line in counts), counts
    assert service.cluster.in_flight() == 0
    assert service.gateway.bodies.held_bytes == 0
    assert service.gateway.kept.held_bytes == 0
    assert service.gateway.brain.faults == 0
    assert after[0] <= before[0], "tasks were left"
    assert after[1] <= before[1], "files were left open"
    assert last <= second * MEMORY_RATIO_MAX, "memory grows"
