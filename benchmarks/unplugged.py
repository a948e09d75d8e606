"""The whole gateway with its plugs pulled: all but the kernel and the event loop, CPU microseconds.

    python benchmarks/unplugged.py [--instances 8] [--prompt-bytes 64] [--profile] [--json]

A real `Gateway` with keys, quotas, resuming, equal cost, records, usage and metrics, whose connections are objects that
keep what is written to them. So a figure holds still on a busy machine, and a change of some percent can be seen.

whole: an answer that is not streamed; stream: one of 16 tokens, each in a read of its own; event: one token more.
Requests come in batches of 64, as from so many connections. `--profile` shows the functions of `whole` by own time.
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import time
from collections.abc import Callable

from budget import ANSWER, body

from isochrone.access.keys import StoredKey, digest_of
from isochrone.access.tenants import Tenant
from isochrone.cluster import Cluster
from isochrone.config.driver import Access, KeyPlan
from isochrone.gateway.app import Gateway, GatewaySettings
from isochrone.gateway.keywatch import KeyWatch
from isochrone.gateway.server import ClientConnection
from isochrone.gateway.upstream import Upstream
from isochrone.nouns.events import ModelsSeen, Probed, Verdict
from isochrone.nouns.instance import InstanceSpec, ModelCard
from isochrone.nouns.settings import Settings

CONNECTIONS = 64
TOKENS = 16
REPETITIONS = 7
KEY = b"iso-of-a-benchmark"
PLENTY = 1_000_000_000
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,'
    b'"delta":%b,"logprobs":null,"finish_reason":%b,"token_ids":[%d]}]%b}\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":16,"total_tokens":%d,"completion_tokens":%d}}\n\n'
)


class Wire:
    """In place of a transport: keeps the last bytes that were written, and who is to answer them."""

    def __init__(self, asked: "list[Upstream] | None" = None, upstream: Upstream | None = None) -> None:
        self.asked, self.upstream = asked, upstream
        self.last = b""

    def write(self, data: bytes) -> None:
        self.last = data
        if self.asked is not None and self.upstream is not None:
            self.asked.append(self.upstream)

    def writelines(self, parts: tuple[bytes, bytes]) -> None:
        self.write(parts[0])

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        """As much as anyone wants."""

    def abort(self) -> None:
        raise AssertionError("nothing goes wrong here")


class Unplugged:
    """A gateway, its clients and its instances. Needs a running event loop, which is never given control."""

    def __init__(self, instances: int, prompt_bytes: int) -> None:
        tenant = Tenant(name="t", requests_per_minute=PLENTY, tokens_per_minute=PLENTY, concurrent_requests=PLENTY)
        access = Access(keys=True, tenants={"t": tenant})
        self.gateway = Gateway(Cluster(Settings(samples_warm=0), random.Random(1)), GatewaySettings(access=access))
        door = self.gateway.door
        assert door is not None
        door.ring.update([StoredKey(id="k", digest=digest_of(KEY), tenant="t", created_s=0)])
        self.gateway.records.append(KeyWatch(door.ring, KeyPlan()).record)
        self.asked: list[Upstream] = []
        for number in range(instances):
            self._add(f"i{number}")
        self.clients = [ClientConnection(self.gateway) for _ in range(CONNECTIONS)]
        for client in self.clients:
            client.connection_made(Wire())  # type: ignore[arg-type]  # all of a transport that is used here
        self.whole, self.streamed = _request(prompt_bytes, False), _request(prompt_bytes, True)

    def _add(self, name: str) -> None:
        gateway = self.gateway
        gateway.add_instance(InstanceSpec(id=name, url=f"http://{name}:8000", engine="vllm"))
        gateway.submit(ModelsSeen(name, (ModelCard("m", 131_072),)))
        gateway.submit(Probed(name, Verdict.OK))
        pool = gateway.pools[name]
        for _ in range(CONNECTIONS):
            upstream = Upstream(pool)
            upstream.connection_made(Wire(self.asked, upstream))  # type: ignore[arg-type]  # as above
            pool.release(upstream)

    def ask(self, request: bytes) -> list[Upstream]:
        """One request of every client; the connections on which instances are to answer."""
        self.asked.clear()
        for client in self.clients:
            client.data_received(request)
        assert len(self.asked) == CONNECTIONS
        return self.asked[:]

    def answer_whole(self) -> None:
        for upstream in self.ask(self.whole):
            upstream.data_received(WHOLE)
        self._check(b"x-isochrone-attempts: 1")

    def answer_streamed(self, tokens: int = TOKENS) -> None:
        reads = [_chunk(EVENT % (b'{"content":" tok"}', b"null", token, b"")) for token in range(tokens - 1)]
        first = STREAM + _chunk(
            EVENT % (b'{"role":"assistant","content":""}', b"null", 0, b',"prompt_token_ids":[1,2]')
        )
        last = EVENT % (b'{"content":"."}', b'"stop"', 7, b"") + USAGE % (tokens, tokens) + b"data: [DONE]\n\n"
        answer = [first, *reads, _chunk(last) + b"0\r\n\r\n"]
        upstreams = self.ask(self.streamed)
        for read in answer:
            for upstream in upstreams:
                upstream.data_received(read)
        self._check(b"[DONE]")

    def _check(self, wanted: bytes) -> None:
        for client in self.clients:
            assert client.exchange is None
            assert wanted in client.transport.last  # type: ignore[union-attr]  # a Wire


def _request(prompt_bytes: int, stream: bool) -> bytes:
    text = body(prompt_bytes)
    if stream:
        text = text[:-1] + b',"stream":true}'
    lines = (
        b"POST /v1/chat/completions HTTP/1.1", b"Host: 127.0.0.1:8080", b"Content-Type: application/json",
        b"Authorization: Bearer " + KEY, b"Content-Length: %d" % len(text), b"", text,
    )  # fmt: skip
    return b"\r\n".join(lines)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def least_us(call: Callable[[], None], number: int) -> float:
    """CPU of one request; of some repetitions the least, since what lies above it is the machine's."""
    best = float("inf")
    for _ in range(REPETITIONS):
        start = time.process_time()
        for _ in range(number):
            call()
        best = min(best, time.process_time() - start)
    return best / number / CONNECTIONS * 1e6


async def measure(options: argparse.Namespace) -> dict[str, float]:
    rig = Unplugged(options.instances, options.prompt_bytes)
    for _ in range(20):
        rig.answer_whole()
        rig.answer_streamed()
    if options.profile:
        profile = cProfile.Profile(time.process_time)
        with profile:
            for _ in range(100):
                rig.answer_whole()
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)
    whole = least_us(rig.answer_whole, 20)
    stream = least_us(rig.answer_streamed, 10)
    longer = least_us(lambda: rig.answer_streamed(3 * TOKENS), 10)
    rig.gateway.brain.close()
    return {"whole": round(whole, 1), "stream": round(stream, 1), "event": round((longer - stream) / TOKENS / 2, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--prompt-bytes", type=int, default=64)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    print(json.dumps(rows) if options.json else "\n".join(f"{name:8} {us:8.2f} us" for name, us in rows.items()))


if __name__ == "__main__":
    main()
