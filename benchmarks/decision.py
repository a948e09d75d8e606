"""What one decision costs: CPU microseconds of the core alone, no sockets.

    python benchmarks/decision.py [--instances 8,64,1000] [--prompt-tokens 4000] [--requests 2000] [--json]

Decision: prefix match, price of every candidate, pick. Request: all events of one streamed request through the door
(arrived, accepted, first token, ended), with ledger, index, learning, record and series. Prompts share 50 prefixes.
Figures are the least of several repetitions: everything above it is the machine's, not ours.
"""

import argparse
import json
import random
import time

from isochrone.cluster import Cluster
from isochrone.cluster.choosing import choose, hits, refresh
from isochrone.kv.hashing import chain, text_salt
from isochrone.nouns.commands import Dispatch
from isochrone.nouns.events import Accepted, Arrived, Ended, FirstToken, Found, ModelsSeen, Outcome, Probed, Verdict
from isochrone.nouns.instance import InstanceSpec, ModelCard
from isochrone.nouns.instant import MILLISECOND, SECOND
from isochrone.nouns.request import PromptSize, Request, Usage
from isochrone.nouns.settings import Settings

MODEL = "m"
BYTES_PER_TOKEN = 4
PREFIXES = 50
REPETITIONS = 7


class Bench:
    """A cluster with load on every instance."""

    def __init__(self, instances: int, prompt_tokens: int) -> None:
        self.cluster = Cluster(Settings(samples_warm=0, hold=False), random.Random(1))
        self.now = SECOND
        self.count = 0
        self.instances = instances
        self.length = prompt_tokens * BYTES_PER_TOKEN
        chance = random.Random(2)
        self.texts = [chain(text_salt(MODEL), chance.randbytes(self.length)) for _ in range(PREFIXES)]
        self.chance = chance
        self.live: list[int] = []
        for number in range(instances):
            name = f"i{number}"
            self.cluster.handle(self.now, Found(InstanceSpec(id=name, url=f"http://{name}", device_class="one")))
            self.cluster.handle(self.now, ModelsSeen(name, (ModelCard(MODEL, 131_072),)))
            self.cluster.handle(self.now, Probed(name, Verdict.OK))

    def request(self) -> Request:
        self.count += 1
        return Request(
            id=f"r{self.count}",
            model=MODEL,
            path="/v1/chat/completions",
            stream=True,
            size=PromptSize(text_bytes=self.length, messages=1),
            blocks=self.chance.choice(self.texts),
            hashed_bytes=self.length,
            max_tokens=100,
        )

    def one(self) -> None:
        """One request arrives; the oldest of those in flight ends."""
        self.now += MILLISECOND
        for command in self.cluster.handle(self.now, Arrived(self.request())):
            if isinstance(command, Dispatch):
                self.live.append(command.attempt)
        while len(self.live) > 3 * self.instances:
            attempt = self.live.pop(0)
            for event in (
                Accepted(attempt),
                FirstToken(attempt),
                Ended(attempt, Outcome.DONE, True, 200, Usage(self.length // BYTES_PER_TOKEN, 64, 0, "stop")),
            ):
                self.cluster.handle(self.now, event)

    def request_us(self, requests: int) -> float:
        best = float("inf")
        for _ in range(REPETITIONS):
            start = time.process_time_ns()
            for _ in range(requests):
                self.one()
            best = min(best, (time.process_time_ns() - start) / requests / 1000)
        return best

    def decision_us(self, requests: int) -> float:
        """Match, price and pick for a request whose rows are fresh."""
        world = self.cluster._world
        pool = world.pools[MODEL]
        self.cluster.handle(self.now, Arrived(self.request()))
        flow = next(reversed(world.flows.values()))
        best = float("inf")
        for _ in range(REPETITIONS):
            start = time.process_time_ns()
            for _ in range(requests):
                refresh(world, self.now, pool)
                flow.ask.hits = hits(world, flow, pool)
                choose(world, self.now, flow)
            best = min(best, (time.process_time_ns() - start) / requests / 1000)
        return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", default="8,64,1000")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {}
    for instances in (int(part) for part in options.instances.split(",")):
        bench = Bench(instances, options.prompt_tokens)
        for _ in range(4 * instances + 500):
            bench.one()
        rows[instances] = {
            "request_us": round(bench.request_us(options.requests), 1),
            "decision_us": round(bench.decision_us(options.requests), 1),
        }
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'instances':>9}  {'decision us':>11}  {'request us':>10}")
    for instances, row in rows.items():
        print(f"{instances:>9}  {row['decision_us']:>11}  {row['request_us']:>10}")


if __name__ == "__main__":
    main()
