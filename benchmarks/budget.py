"""Where the CPU of one request goes: microseconds of each stage, without sockets.

    python benchmarks/budget.py [--instances 4] [--json]

scan: body to descriptor (JSON, sizes, hashes); hash: block hashes of a 4 KB prompt alone; decide: prefix match, prices,
pick; door: every event of a whole answer through `Cluster.handle`, deciding included; metrics: series of one request;
usage: token counts out of an answer; event: one streamed event through the meter. What is left of the figure that
`isochrone serve` shows under load is the relay: two HTTP parsers, heads, and the system calls of two sockets.
"""

import argparse
import json
import random
import time
import timeit
from collections.abc import Callable

from decision import Bench

from isochrone.access.answer import usage_of
from isochrone.access.paths import Paths, Route
from isochrone.access.scan import scan
from isochrone.access.sse import StreamMeter
from isochrone.kv.hashing import chain, text_salt
from isochrone.nouns.commands import Dispatch
from isochrone.nouns.decision import Decision
from isochrone.nouns.events import Arrived, Ended, Outcome
from isochrone.nouns.instant import MILLISECOND
from isochrone.nouns.request import Usage
from isochrone.observe.series import Series

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 16, "completion_tokens": 8, "total_tokens": 24},
    }
).encode()
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" tok"},"logprobs":null,"finish_reason":null}]}\n\n'
)


def body(prompt_bytes: int) -> bytes:
    text = " ".join(random.Random(1).choices(["the", "queue", "waits", "for", "a", "card"], k=prompt_bytes))
    messages = [{"role": "user", "content": text[:prompt_bytes]}]
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 16}).encode()


def least_us(call: Callable[[], object], number: int = 5000) -> float:
    """Of seven repetitions: what lies above it is the machine's."""
    return min(timeit.repeat(call, number=number, repeat=7, timer=time.process_time)) / number * 1e6


def whole_answers_us(bench: Bench) -> float:
    """Arrived and Ended of answers that come whole."""

    def one() -> None:
        bench.now += MILLISECOND
        for command in bench.cluster.handle(bench.now, Arrived(bench.request())):
            if isinstance(command, Dispatch):
                bench.live.append(command.attempt)
        while len(bench.live) > 3 * bench.instances:
            ended = Ended(bench.live.pop(0), Outcome.DONE, True, 200, Usage(16, 8, 0, "stop"))
            bench.cluster.handle(bench.now, ended)

    for _ in range(2000):
        one()
    return least_us(one, 2000)


def stages(instances: int) -> dict[str, float]:
    route = _chat()
    small, large, huge = body(64), body(4096), body(65536)
    text = large[40:4136]
    salt = text_salt("m")
    meter = StreamMeter(cut_usage=False)
    series = Series()
    series.know_models(["m"])
    decision = Decision(
        request="r", model="m", path="p", tenant="t", route="default", stream=True, policy="p", arrived_at=0,
        prompt_tokens_estimate=16, outcome="done", status=200,
    )  # fmt: skip

    def metrics() -> None:
        series.arrived("m", "default")
        series.dispatched("m", "i", 1, 0.0)
        series.attempt_ended("m", "i", "done")
        series.request_done("m", "default", "i", decision, 0.1, None, None, 16, 8, 0)

    bench = Bench(instances, prompt_tokens=16)
    rows = {
        "scan, 64 B prompt": least_us(lambda: scan(route, small)),
        "scan, 4 KB prompt": least_us(lambda: scan(route, large)),
        "scan, 64 KB prompt": least_us(lambda: scan(route, huge), 500),
        "hash, 4 KB": least_us(lambda: chain(salt, text)),
        "door, whole answer": whole_answers_us(bench),
        "decide": bench.decision_us(2000),
        "metrics": least_us(metrics),
        "usage of a whole answer": least_us(lambda: usage_of(ANSWER)),
        "event, streamed": least_us(lambda: meter.feed(EVENT)),
    }
    return {stage: round(us, 2) for stage, us in rows.items()}


def _chat() -> Route:
    route = Paths().find(b"POST", b"/v1/chat/completions")
    assert isinstance(route, Route)
    return route


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = stages(options.instances)
    if options.json:
        print(json.dumps(rows))
        return
    for stage, us in rows.items():
        print(f"{stage:26} {us:8.2f} us")


if __name__ == "__main__":
    main()
