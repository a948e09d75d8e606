"""Two hundred greedy streams over two real vLLM engines, one fault to each batch of forty at a token that is
drawn: each client reads what it would have read from an engine that nobody disturbs."""

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import calls
from tests.support.calls import call, eventually, get, metric
from tests.support.processes import Up, ready_instances
from tests.support.raw_client import RawClient, post
from tests.support.real_vllm import environment, pair_of_vllm
from tests.support.running import run

pytestmark = pytest.mark.vllm

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BATCH = 40
TOKENS_MIN, TOKENS_MAX = 200, 400
LIMIT_S = 240.0
"""For the streams of a batch, a hung engine found among them."""
RESUMED_MIN = 8
"""Of a batch, by far fewer than the half that the disturbed engine has: some of those may have ended before."""
WORDS = "the queue of a cluster waits for price second card block 实例 缓存 кэш запрос why when if not 7 12 , . ?"
CONFIG = "deadlines: {drain_move_s: 0.1}"
"""All else is as usual; but streams of some seconds are not to end before a drain moves them."""


@dataclass(frozen=True)
class Asked:
    """A streamed request."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Said:
    """What a client makes of the answer."""

    text: str
    finish_reason: str
    usage: dict[str, int]


@dataclass(frozen=True)
class Fault:
    """What befalls an engine, and what brings it back."""

    name: str
    strike: Callable[[Up, str], None]
    back: Callable[[Up, str], None]


def questions(count: int, chance: random.Random) -> list[Asked]:
    """Chat and completions in turn, from 10 to 60 words."""
    asked = []
    for number in range(count):
        text = f"{number}: " + " ".join(chance.choices(WORDS.split(), k=chance.randint(10, 60)))
        prompt: dict[str, Any] = {"prompt": text} if number % 2 else {"messages": [{"role": "user", "content": text}]}
        bounds = {"temperature": 0, "max_tokens": chance.randint(TOKENS_MIN, TOKENS_MAX)}
        how = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}}
        asked.append(Asked((CHAT, COMPLETIONS)[number % 2], {**how, **bounds, **prompt}))
    return asked


def with_stop(asked: Asked, said: Said) -> Asked:
    """The same with three letters of its answer as a stop string: the engine holds back what may be their beginning."""
    place = len(said.text) * 2 // 3
    return Asked(asked.path, {**asked.body, "stop": [said.text[place : place + 3]]})


class Text:
    """Tells when so many characters of a batch are out, all its streams together."""

    def __init__(self, wanted: int) -> None:
        self._left = wanted
        self.out = asyncio.Event()

    def add(self, count: int) -> None:
        self._left -= count
        if self._left <= 0:
            self.out.set()


async def read(url: str, asked: Asked, text: Text) -> tuple[Said, str]:
    """The answer, and the gateway's name for the request."""
    texts: list[str] = []
    reasons: list[str] = []
    usages: list[dict[str, int]] = []
    ids: set[str] = set()
    async with RawClient(urlsplit(url).port or 0) as client:
        client.send(post(json.dumps(asked.body).encode(), asked.path))
        head = await client.head()
        assert head.startswith("HTTP/1.1 200 "), head
        async for event in events(client):
            ids.add(event["id"])
            for choice in event["choices"]:
                said = choice["text"] if asked.path == COMPLETIONS else choice["delta"].get("content") or ""
                text.add(len(said))
                texts.append(said)
                reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            usages += [event["usage"]] if event.get("usage") else []
    assert len(ids) == len(reasons) == len(usages) == 1, (ids, reasons, usages)
    counts = {part: usages[0][part] for part in ("prompt_tokens", "completion_tokens", "total_tokens")}
    name = re.search(r"^x-isochrone-request-id: (\S+)", head, re.MULTILINE | re.IGNORECASE)
    return Said("".join(texts), reasons[0], counts), name[1] if name else ""


async def events(client: RawClient) -> AsyncIterator[Any]:
    """Each as it comes, up to `[DONE]`, which is the last."""
    event = data = b""
    async for chunk in client.chunks():
        *whole, data = (data + chunk).split(b"\n\n")
        for event in whole:
            assert event.startswith(b"data: "), event
            if event != b"data: [DONE]":
                yield json.loads(event[len(b"data: ") :])
    assert (event, data) == (b"data: [DONE]", b"")


async def read_all(url: str, asked: Sequence[Asked], text: Text) -> list[tuple[Said, str]]:
    return await asyncio.gather(*(read(url, one, text) for one in asked))


def kill(up: Up, engine: str) -> None:
    os.kill(up.pid(engine), signal.SIGKILL)


def started_again(up: Up, engine: str) -> None:
    """`isochrone up` has started it anew."""
    up.wait_for(engine, "ready", len(up.found(engine, "started")), within_s=300)


def freeze(up: Up, engine: str) -> None:
    """All its processes: connections stand, and nobody answers."""
    os.killpg(up.pid(engine), signal.SIGSTOP)


def freeze_core(up: Up, engine: str) -> None:
    """Only the process that computes: `/health` goes on saying 200."""
    cores = [pid for pid in members(up.pid(engine)) if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(cores) == 1, cores
    os.kill(cores[0], signal.SIGSTOP)


def members(group: int) -> Iterator[int]:
    """Processes of a group."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                yield int(folder.name)
        except ProcessLookupError:
            continue


def thaw(up: Up, engine: str) -> None:
    os.killpg(up.pid(engine), signal.SIGCONT)


def drain(up: Up, engine: str) -> None:
    assert call(up.admin, "POST", f"/admin/instances/{instance(up, engine)}/drain").status == 202


def undrain(up: Up, engine: str) -> None:
    assert call(up.admin, "POST", f"/admin/instances/{instance(up, engine)}/undrain").status == 202


def instance(up: Up, engine: str) -> str:
    return up.engines[engine].removeprefix("http://")


KILLED = Fault("killed", kill, started_again)
FROZEN = Fault("stopped", freeze, thaw)
CORE_FROZEN = Fault("stopped computing", freeze_core, thaw)
DRAINED = Fault("drained", drain, undrain)
FAULTS = (KILLED, FROZEN, DRAINED, CORE_FROZEN, KILLED)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Up]:
    config = tmp_path / "isochrone.yaml"
    config.write_text(CONFIG)
    with pair_of_vllm(environment(), tmp_path / "logs", ("--serve-arg", f"--config {config}")) as up:
        yield up


def test_two_hundred_streams_are_as_if_nothing_had_been(pair: Up) -> None:
    chance = random.Random(13)
    asked, undisturbed = left_in_peace(pair.engines["engine-1"], questions(BATCH * len(FAULTS), chance))
    for number, fault in enumerate(FAULTS):
        these = slice(number * BATCH, (number + 1) * BATCH)
        engine = chance.choice(sorted(pair.engines))
        share = chance.uniform(0.1, 0.5)
        resumed = batch(pair, asked[these], undisturbed[these], fault, engine, share)
        assert resumed >= RESUMED_MIN, f"only {resumed} streams had to go on elsewhere"
        fault.back(pair, engine)
        all_well(pair)
    assert metric(pair.admin, "isochrone_held_resume_bytes") == 0


def left_in_peace(url: str, asked: Sequence[Asked]) -> tuple[list[Asked], list[Said]]:
    """What an engine says by itself. Every fifth request gets a stop string out of its answer, and is asked again."""

    def ask(some: Sequence[Asked]) -> list[Said]:
        batches = [some[first : first + BATCH] for first in range(0, len(some), BATCH)]
        return [said for one in batches for said, _ in run(read_all(url, one, Text(0)), LIMIT_S)]

    said = ask(asked)
    asked = [with_stop(one, said[n]) if n % 5 == 4 else one for n, one in enumerate(asked)]
    said[4::5] = ask(asked[4::5])
    assert {one.finish_reason for one in said[4::5]} == {"stop"}
    assert len({one.text for one in said}) == len(asked), "or else the comparison would prove nothing"
    return asked, said


def batch(up: Up, asked: Sequence[Asked], undisturbed: Sequence[Said], fault: Fault, engine: str, share: float) -> int:
    """Ask all at once, disturb one engine when that share of the text is out; how many streams went on elsewhere."""

    async def disturbed() -> list[tuple[Said, str]]:
        text = Text(int(share * sum(len(one.text) for one in undisturbed)))
        answers = asyncio.ensure_future(read_all(up.gateway, asked, text))
        await text.out.wait()
        fault.strike(up, engine)
        return await answers

    before = metric(up.admin, "isochrone_streams_resumed_total")
    answers = run(disturbed(), LIMIT_S)
    resumed = int(metric(up.admin, "isochrone_streams_resumed_total") - before)
    print(f"{engine} {fault.name} at {share:.0%} of the text: {resumed} of {len(asked)} streams went on elsewhere")
    different = [(n, a, b) for n, ((a, _), b) in enumerate(zip(answers, undisturbed, strict=True)) if a != b]
    assert different == []
    for said, name in answers:
        record = get(up.admin, f"/admin/decisions/{name}").json()
        assert (record["outcome"], record["output_tokens"]) == ("done", said.usage["completion_tokens"]), record
    return resumed


def all_well(up: Up) -> None:
    """No engine computes for a client that has its answer; both take requests. One that has failed some proves itself
    with one, so there has to be some traffic."""
    short = {"model": "tiny", "prompt": "well?", "max_tokens": 4}

    def well() -> bool:
        return calls.post(up.gateway, COMPLETIONS, short).status == 200 and ready_instances(up) == 2

    eventually(well, within_s=60)
    eventually(lambda: all(metric(url, "vllm:num_requests_running") == 0 for url in up.engines.values()), within_s=20)
