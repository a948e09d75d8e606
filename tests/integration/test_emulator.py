"""Emulated instances over real sockets, a thousand times faster than life."""

import asyncio
import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isochrone.emulator.connection import HEAD_BYTES_MAX
from isochrone.emulator.instance import Character
from isochrone.emulator.server import Emulator, Place
from isochrone.twin.profiles import PROFILES

FAST = Character(PROFILES["h100-8b"], "tiny", pace=0.001, mean_output=None)
SLOW = dataclasses.replace(FAST, pace=10.0)
"""A step takes 70 ms: long enough to act in the middle of an answer."""
CHAT = "/v1/chat/completions"
COMPLETE = "/v1/completions"
HELLO = [{"role": "user", "content": "hello there"}]


class Client:
    """One connection: sends bytes, reads whole answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, method: str, path: str, body: object = None, headers: str = "") -> None:
        raw = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n{headers}\r\n"
        self.writer.write(head.encode() + raw)

    async def head(self) -> tuple[int, str]:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        return int(text.split(" ", 2)[1]), text

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of a whole answer, chunked or not."""
        status, head = await self.head()
        if "transfer-encoding: chunked" in head:
            return status, b"".join([chunk async for chunk in self.chunks()])
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        return status, await self.reader.readexactly(length)

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)

    async def ask(self, path: str, body: object) -> tuple[int, Any]:
        self.send("POST", path, body)
        status, raw = await self.answer()
        return status, json.loads(raw)

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a streamed answer, each of which must be one HTTP chunk."""
        self.send("POST", path, {**body, "stream": True})
        assert (await self.head())[0] == 200
        chunks = [chunk async for chunk in self.chunks()]
        assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
        assert chunks[-1] == b"data: [DONE]\n\n"
        return [json.loads(chunk[6:]) for chunk in chunks[:-1]]


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def with_emulator(
    story: Callable[[Emulator, Client], Awaitable[None]], *characters: Character, shutdown_s: float = 0.0
) -> None:
    """Run a story against the first instance of an emulator on free ports."""

    async def play() -> None:
        place = Place(port=0, shutdown_s=shutdown_s)
        async with Emulator(characters or (FAST,), place) as emulator, connected(emulator.urls[0]) as client:
            await asyncio.wait_for(story(emulator, client), timeout=30)

    uvloop.run(play())


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop run until something is so; the story's own limit ends it otherwise."""
    while not is_so():
        await asyncio.sleep(0.001)


def prompt_ids(answer: Any, chat: bool) -> list[int]:
    ids: list[int] = (answer if chat else answer["choices"][0])["prompt_token_ids"]
    return ids


def text_of(events: list[Any], chat: bool) -> str:
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(choice["delta"]["content"] if chat else choice["text"] for choice in choices)


@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": HELLO}), (COMPLETE, {"prompt": "hello there"})])
def test_streamed_and_whole_answers_say_the_same(path: str, asked: dict[str, Any]) -> None:
    async def story(_: Emulator, client: Client) -> None:
        asked_more = {**asked, "model": "tiny", "max_tokens": 9, "return_token_ids": True}
        status, whole = await client.ask(path, asked_more)
        assert status == 200
        events = await client.stream(path, {**asked_more, "stream_options": {"include_usage": True}})
        choice = whole["choices"][0]
        chat = path == CHAT
        assert text_of(events, chat) == (choice["message"]["content"] if chat else choice["text"])
        ids = [token for event in events[:-1] for token in event["choices"][0].get("token_ids") or []]
        assert ids == choice["token_ids"]
        assert events[-2]["choices"][0]["finish_reason"] == choice["finish_reason"] == "length"
        assert events[-1]["choices"] == []
        for name, count in (("prompt_tokens", len(prompt_ids(whole, chat))), ("completion_tokens", 9)):
            assert events[-1]["usage"][name] == whole["usage"][name] == count
        assert prompt_ids(events[0], chat) == prompt_ids(whole, chat)

    with_emulator(story)


def test_a_continuation_by_ids_or_by_text_on_another_instance_gives_the_rest() -> None:
    async def story(emulator: Emulator, client: Client) -> None:
        asked = {"messages": HELLO, "max_tokens": 20, "return_token_ids": True}
        _, whole = await client.ask(CHAT, asked)
        prompt, ids = whole["prompt_token_ids"], whole["choices"][0]["token_ids"]
        text = whole["choices"][0]["message"]["content"]
        async with connected(emulator.urls[1]) as other:
            for cut in (1, 7, 19):
                _, rest = await other.ask(COMPLETE, {"prompt": prompt + ids[:cut], "max_tokens": 20 - cut})
                head = text.removesuffix(rest["choices"][0]["text"])
                assert len(head.split()) == cut
                body = {
                    "messages": [*HELLO, {"role": "assistant", "content": head}],
                    "add_generation_prompt": False,
                    "continue_final_message": True,
                    "max_tokens": 20 - cut,
                }
                _, by_text = await other.ask(CHAT, body)
                assert head + by_text["choices"][0]["message"]["content"] == text

    with_emulator(story, FAST, FAST)


def test_several_prompts_and_choices_are_several_sequences() -> None:
    async def story(_: Emulator, client: Client) -> None:
        _, whole = await client.ask(COMPLETE, {"prompt": ["one", "two"], "n": 2, "max_tokens": 6})
        texts = [choice["text"] for choice in whole["choices"]]
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
        assert len(set(texts)) == 4
        assert whole["usage"]["completion_tokens"] == 24
        events = await client.stream(COMPLETE, {"prompt": ["one", "two"], "n": 2, "max_tokens": 6})
        streamed = ["", "", "", ""]
        for event in events:
            streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert streamed == texts

    with_emulator(story)


def test_answers_end_by_themselves_unless_told_otherwise() -> None:
    async def story(_: Emulator, client: Client) -> None:
        asked = {"messages": HELLO, "max_tokens": 400}
        _, short = await client.ask(CHAT, asked)
        _, longer = await client.ask(CHAT, {**asked, "min_tokens": 300})
        _, longest = await client.ask(CHAT, {**asked, "ignore_eos": True})
        counts = [answer["usage"]["completion_tokens"] for answer in (short, longer, longest)]
        assert counts[0] < 100
        assert 300 < counts[1] <= 400
        assert counts[2] == 400
        assert [answer["choices"][0]["finish_reason"] for answer in (short, longer, longest)] == [
            "stop",
            "stop",
            "length",
        ]

    with_emulator(story, dataclasses.replace(FAST, mean_output=8.0))


def test_the_second_turn_finds_the_first_in_the_prefix_cache() -> None:
    async def story(_: Emulator, client: Client) -> None:
        turn = [{"role": "user", "content": "tell me a long story about a small house " * 8}]
        _, first = await client.ask(CHAT, {"messages": turn, "max_tokens": 60})
        answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
        _, second = await client.ask(CHAT, {"messages": [*turn, answer, *HELLO], "max_tokens": 5})
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        known = first["usage"]["total_tokens"]
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert known - 16 - 1 <= cached <= known

    with_emulator(story)


def test_the_context_has_an_end() -> None:
    async def story(_: Emulator, client: Client) -> None:
        status, refusal = await client.ask(COMPLETE, {"prompt": "a b c d e", "max_tokens": 60})
        assert status == 400
        assert "maximum context length is 64 tokens" in refusal["error"]["message"]
        status, whole = await client.ask(CHAT, {"messages": HELLO})
        assert whole["usage"]["total_tokens"] == 64
        assert whole["choices"][0]["finish_reason"] == "length"

    with_emulator(story, dataclasses.replace(FAST, profile=dataclasses.replace(FAST.profile, max_model_len=64)))


def test_a_client_that_leaves_frees_its_sequence_and_blocks() -> None:
    async def story(emulator: Emulator, client: Client) -> None:
        instance = emulator.instances[0]
        client.send("POST", CHAT, {"messages": HELLO, "stream": True, "ignore_eos": True, "max_tokens": 1000})
        async with connected(emulator.urls[0]) as whole:
            whole.send("POST", CHAT, {"messages": HELLO, "max_tokens": 1000})
            await until(lambda: len(instance.engine.scheduler.running) == 2)
        client.writer.close()
        await until(lambda: not instance.busy)
        assert instance.engine.scheduler.pool.used == 0
        assert instance.metrics.finished == {"stop": 0, "length": 0, "abort": 2}

    with_emulator(story, SLOW)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def story(emulator: Emulator, client: Client) -> None:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        asked = {"prompt": "a", "max_tokens": 100_000, "stream": True, "return_token_ids": True}
        client.send("POST", COMPLETE, asked)
        await until(lambda: emulator.instances[0].metrics.finished["abort"] == 1)

    with_emulator(story, dataclasses.replace(FAST, pace=1e-6))


def test_pipelined_requests_are_answered_in_order() -> None:
    async def story(_: Emulator, client: Client) -> None:
        client.send("POST", COMPLETE, {"prompt": "a", "max_tokens": 3})
        client.send("GET", "/version")
        client.send("POST", COMPLETE, {"prompt": "b", "max_tokens": 4})
        bodies = [json.loads((await client.answer())[1]) for _ in range(3)]
        assert [body.get("usage", {}).get("completion_tokens") for body in bodies] == [3, None, 4]
        assert bodies[1] == {"version": "0.32.0"}

    with_emulator(story)


def test_metrics_add_up() -> None:
    async def story(_: Emulator, client: Client) -> None:
        for _nth in range(2):
            await client.ask(COMPLETE, {"prompt": "hello there " * 40, "max_tokens": 5})
        client.send("GET", "/metrics")
        samples = dict(
            line.rsplit(" ", 1) for line in (await client.answer())[1].decode().splitlines() if line[0] != "#"
        )
        label = '{engine="0",model_name="tiny"}'
        prompt = float(samples[f"vllm:prompt_tokens_total{label}"])
        hits = float(samples[f"vllm:prefix_cache_hits_total{label}"])
        assert float(samples[f"vllm:prefix_cache_queries_total{label}"]) == prompt
        assert prompt / 2 - 17 < hits < prompt / 2
        assert float(samples[f"vllm:generation_tokens_total{label}"]) == 10
        assert float(samples[f"vllm:iteration_tokens_total_sum{label}"]) == prompt - hits + 10
        assert float(samples[f"vllm:inter_token_latency_seconds_count{label}"]) == 8
        assert float(samples[f"vllm:time_to_first_token_seconds_count{label}"]) == 2
        ended = 'vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"}'
        assert float(samples[ended]) == 2
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert float(samples[f"vllm:{gauge}{label}"]) == 0
        buckets = [
            float(value) for name, value in samples.items() if name.startswith("vllm:inter_token_latency_seconds_b")
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == 8

    with_emulator(story)


def test_bad_requests_get_an_answer_and_the_server_lives() -> None:
    async def story(emulator: Emulator, client: Client) -> None:
        for path, body, status in (
            (CHAT, {"messages": HELLO, "model": "other"}, 404),
            (CHAT, {"messages": 3}, 400),
            ("/v1/nothing", {}, 404),
            ("/v1/models", {}, 405),
            ("/detokenize", {"tokens": [-5]}, 400),
        ):
            assert (await client.ask(path, body))[0] == status
        for raw in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"a" * HEAD_BYTES_MAX + b"\r\n\r\n"):
            async with connected(emulator.urls[0]) as broken:
                broken.writer.write(raw)
                assert (await broken.head())[0] == 400
        client.send("GET", "/health")
        assert await client.answer() == (200, b"")

    with_emulator(story)


def test_idle_connections_are_closed_and_running_answers_finish_on_stop() -> None:
    async def play() -> None:
        place = Place(port=0, shutdown_s=20.0)
        emulator = Emulator((SLOW,), place)
        async with emulator, connected(emulator.urls[0]) as idle, connected(emulator.urls[0]) as busy:
            answer = asyncio.ensure_future(busy.stream(CHAT, {"messages": HELLO, "max_tokens": 4}))
            await until(lambda: emulator.instances[0].busy)
            await emulator.stop()
            assert await idle.reader.read() == b""
            assert text_of(await answer, chat=True).count(" ") == 4
            assert await busy.reader.read() == b""

    uvloop.run(play())


def test_keep_alive_runs_out() -> None:
    async def play() -> None:
        async with (
            Emulator((FAST,), Place(port=0, keep_alive_s=0.0, shutdown_s=0.0)) as emulator,
            connected(emulator.urls[0]) as client,
        ):
            assert await asyncio.wait_for(client.reader.read(), timeout=10) == b""

    uvloop.run(play())


def test_steps_keep_their_pace() -> None:
    async def story(emulator: Emulator, client: Client) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await client.ask(COMPLETE, {"prompt": "a", "max_tokens": 50})
        took = loop.time() - began
        planned = 50 * SLOW.profile.step.seconds(1, 25, 0)
        assert planned * 0.99 < took
        metrics = emulator.instances[0].metrics
        assert metrics.gap_s.sum == pytest.approx(49 / 50 * planned, rel=0.02)

    with_emulator(story, dataclasses.replace(FAST, pace=1.0))


def test_the_command_says_where_it_listens_and_stops_on_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    arguments = [
        "emulate",
        "--port",
        "0",
        "--count",
        "2",
        "--speed",
        "100",
        "--slow",
        "1:2.5",
        "--ready-file",
        str(ready),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "isochrone.cli.main", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        urls = [line.split(" at ")[1].strip() for line in lines]

        async def play() -> None:
            async with connected(urls[1]) as client:
                assert (await client.ask(CHAT, {"messages": HELLO, "max_tokens": 2}))[0] == 200

        uvloop.run(play())
        # The file is written after the lines; the answer above came from the running server.
        assert json.loads(ready.read_text()) == {"urls": urls}
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
