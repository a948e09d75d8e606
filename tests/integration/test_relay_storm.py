"""Thousands of requests that end in every way, and random bytes: afterwards nothing is left and the gateway serves.

`ISOCHRONE_FUZZ_SECONDS` makes the fuzz longer (default 10), `ISOCHRONE_FUZZ_SEED` repeats one run.
"""

import asyncio
import os
import random
import time

from isochrone.nouns.events import Probed, Verdict
from isochrone.nouns.settings import Settings
from tests.support.fake_engine import (
    DONE,
    END,
    SSE_HEAD,
    FakeEngine,
    Wire,
    chunk,
    delta,
    event,
    head,
    json_answer,
    raw,
    sse_answer,
)  # fmt: skip
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.running import Served, quick, run, serving

TOKENS = [delta(str(number)) for number in range(8)]
FUZZ_S = float(os.environ.get("ISOCHRONE_FUZZ_SECONDS", "10"))
FUZZ_SEED = int(os.environ.get("ISOCHRONE_FUZZ_SEED", "0")) or random.randrange(1, 2**32)


async def reset(wire: Wire) -> None:
    wire.reset()


async def reset_midway(wire: Wire) -> None:
    wire.send(SSE_HEAD + chunk(TOKENS[0]))
    await wire.turn(10)
    wire.reset()


async def hang(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


ENDINGS = [
    sse_answer([*TOKENS, DONE]),
    sse_answer([*TOKENS, DONE]),
    json_answer({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 8}}),
    json_answer({"error": {"message": "no"}}, 400),
    json_answer({"error": {"message": "full"}}, 429),
    json_answer({"error": {"message": "broken"}}, 500),
    raw(head(200, "content-type: application/json"), b"{}", fin=True),
    raw(b"garbage\r\n\r\n"),
    raw(SSE_HEAD, chunk(TOKENS[0]), END),
    sse_answer([event({"error": {"message": "boom"}}), DONE]),
    reset,
    reset_midway,
    hang,
]


def test_every_account_is_zero_after_requests_that_ended_in_every_way():
    """R-08: 3,000 requests: answered, refused, failed, broken off, timed out, left by their clients at any moment."""
    settings = Settings(
        policy="equal-cost", first_token_s=0.1, gap_s=0.1, whole_s=0.2, retry_tokens_per_s=1e9, retry_tokens_max=1e9,
        failures_suspect=10**6, failures_eject=10**7,
    )  # fmt: skip

    async def test():
        chance = random.Random(11)
        async with FakeEngine() as one, FakeEngine() as two, FakeEngine() as three:

            async def any_ending(wire: Wire) -> None:
                await chance.choice(ENDINGS)(wire)

            one.script = two.script = three.script = any_ending
            three.refuse()
            async with serving(one, two, three, limits=quick(idle_s_max=5.0), settings=settings) as served:
                await asyncio.gather(*(_client(served, random.Random(seed), 100) for seed in range(30)))
                await served.until_alone()
                served.assert_nothing_left()
                outcomes = {record.outcome for record in served.records}
                assert {"done", "failed", "rejected", "client_left"} <= outcomes
                assert len(served.records) == 3000
                tries = {attempt.outcome for record in served.records for attempt in record.tries}
                assert tries == {
                    "done", "rejected", "busy", "failed", "unreachable", "lost", "timed_out", "client_left",
                }  # fmt: skip

    run(test(), limit_s=60)


async def _client(served: Served, chance: random.Random, requests: int) -> None:
    for number in range(requests):
        async with RawClient(served.port) as client:
            client.send(post(chat(stream=chance.random() < 0.6, content=f"request {number}")))
            while not served.gateway.brain.requests:
                await asyncio.sleep(0)
            how = chance.random()
            if how < 0.75:
                await client.answer()
            elif how < 0.9:
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
                await _count_in(served)
                client.reset() if how < 0.83 else client.close()
            else:
                await client.reader.read(1)
                client.reset()


async def _count_in(served: Served) -> None:
    """Let the gateway read what was sent, so that every request is counted."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_random_bytes_break_nothing():
    """Noise, and requests with random damage, from clients; noise from engines. Then a good request is served."""

    async def test():
        chance = random.Random(FUZZ_SEED)
        async with FakeEngine() as engine, serving(engine, limits=quick(idle_s_max=1.0)) as served:

            async def noise(wire: Wire) -> None:
                wire.send(_damaged(chance.choice(ANSWERS), chance))
                await wire.turn()
                wire.close() if chance.random() < 0.8 else wire.reset()

            engine.script = noise
            end = time.monotonic() + FUZZ_S
            sent = 0
            while time.monotonic() < end:
                await asyncio.gather(*(_fuzz_once(served, chance) for _ in range(20)))
                sent += 20
            await served.until_alone()
            served.assert_nothing_left()
            engine.script = sse_answer([*TOKENS, DONE])
            for _ in range(3):  # an instance that answers noise is ejected; heartbeats bring it back
                served.gateway.submit(Probed(engine.id, Verdict.OK))
            answer = await ask(served.port, post(chat(stream=True)))
            assert answer.body == b"".join([*TOKENS, DONE])
            assert sent > 100

    print(f"ISOCHRONE_FUZZ_SEED={FUZZ_SEED}")
    run(test(), limit_s=FUZZ_S + 30)


REQUESTS = [
    post(chat()),
    post(chat(stream=True)),
    post(chat()) + get("/health") + post(chat(stream=True)),
    get("/v1/models/m"),
    b'POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"mod\r\n8\r\nel":"m"}\r\n0\r\n\r\n',
    post(b'{"model":"m","prompt":[1,2,3]}', "/v1/completions"),
    post(b"", "/v1/embeddings", "Expect: 100-continue"),
]
ANSWERS = [
    SSE_HEAD + b"".join(chunk(token) for token in [*TOKENS, DONE]) + END,
    head(200, "content-type: application/json", "content-length: 14") + b'{"choices":[]}',
    head(500, "content-length: 2") + b"{}",
    head(204),
]


INSERTED = [b"\r\n", b"\n", b"\x00", b"\r\n\r\n", b"0\r\n\r\n", b"Content-Length: 3\r\n", b"Upgrade: h2c\r\n"]


def _damaged(data: bytes, chance: random.Random) -> bytes:
    """Noise, or the bytes with some of them changed, cut out or repeated."""
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(1, 2000))
    damaged = bytearray(data)
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(damaged) or 1)
        what = chance.randrange(4)
        if what == 0 and damaged:
            damaged[at] = chance.randrange(256)
        elif what == 1:
            del damaged[at : at + chance.randrange(40)]
        elif what == 2:
            damaged[at:at] = damaged[at : at + chance.randrange(40)]
        else:
            damaged[at:at] = chance.choice(INSERTED)
    return bytes(damaged)


async def _fuzz_once(served: Served, chance: random.Random) -> None:
    async with RawClient(served.port) as client:
        data = _damaged(chance.choice(REQUESTS), chance)
        at = 0
        while at < len(data):
            size = chance.randrange(1, 400)
            client.send(data[at : at + size])
            at += size
            await asyncio.sleep(0)
        how = chance.randrange(3)
        if how == 0:
            client.reset()
        elif how == 1:
            client.close()
        else:
            try:
                await asyncio.wait_for(client.reader.read(400), 0.02)
            except (TimeoutError, ConnectionResetError):
                client.reset()
