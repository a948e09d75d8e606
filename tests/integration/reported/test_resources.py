"""Reported cases of memory, descriptors and backpressure: Z-01, Z-02."""

import asyncio
import re
import resource
import signal
import sys
from contextlib import AsyncExitStack

from isochrone.gateway.descriptors import clients_max, is_ours
from tests.support import calls
from tests.support.fake_engine import DONE, END, SSE_HEAD, FakeEngine, Wire, chunk, delta, sse_answer
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.running import quick, run, serving

TOKENS = [delta("one"), delta(" two", "stop")]
GOOD = sse_answer([*TOKENS, DONE])


def test_z01_slow_readers_cost_little_and_stopped_ones_are_cut() -> None:
    """Ten clients stop reading, ten read a little now and then, of streams that never end."""

    async def flood(wire: Wire) -> None:
        wire.send(SSE_HEAD)
        piece = chunk(delta("x" * 16_000))
        while not wire.request.peer_closed.is_set():
            wire.send(piece)
            await wire.flushed()
            await wire.turn(1)

    async def test() -> None:
        limits = quick(client_buffer_bytes_max=64 * 1024, client_write_s_max=0.6)
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(FakeEngine())
            served = await stack.enter_async_context(serving(engine, limits=limits))
            engine.script = flood
            stopped = [await stack.enter_async_context(RawClient(served.port)) for _ in range(10)]
            slow = [await stack.enter_async_context(RawClient(served.port)) for _ in range(10)]
            for client in (*stopped, *slow):
                client.writer.transport.pause_reading()
                client.send(post(chat(stream=True)))
            await engine.request(20)
            requests = list(engine.requests)
            connections = list(served.gateway.connections)
            while not all(connection.full_since for connection in connections):
                await asyncio.sleep(0.001)
            buffered = [connection.transport.get_write_buffer_size() for connection in connections]
            assert max(buffered) < 500_000
            engine.script = GOOD
            over = False

            async def sip(client: RawClient) -> None:
                while not over:
                    client.writer.transport.resume_reading()
                    await client.reader.readexactly(400_000)
                    client.writer.transport.pause_reading()

            sipping = [asyncio.ensure_future(sip(client)) for client in slow]
            for _ in range(10):
                assert (await ask(served.port, post(chat(stream=True)))).body == b"".join([*TOKENS, DONE])
            while sum(request.peer_closed.is_set() for request in requests) < len(stopped):
                await asyncio.sleep(0.005)
            over = True
            await asyncio.wait(sipping)
            assert sum(record.outcome == "client_left" for record in served.records) == len(stopped)
            for client in slow:
                client.reset()
            await served.until_alone()
            served.assert_nothing_left()

    run(test())


OPEN_FILES = 256
SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, %d))
from isochrone.cli.main import main
main(["serve", "--port", "0", "--admin-port", "0", "--instance", sys.argv[1]])
"""


def test_z02_beyond_the_open_files_clients_are_told_and_nothing_else_suffers() -> None:
    """At most 256 open files, 400 streams at once, then 50."""

    async def test() -> None:
        gate = asyncio.Event()

        async def gated(wire: Wire) -> None:
            wire.send(SSE_HEAD + chunk(TOKENS[0]))
            await gate.wait()
            wire.send(chunk(TOKENS[1]) + chunk(DONE) + END)

        async with FakeEngine() as engine:
            engine.script = gated
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", SERVE % OPEN_FILES, engine.url, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                assert process.stdout is not None
                line = (await process.stdout.readline()).decode()
                found = re.search(r"serving http://127.0.0.1:(\d+), admin (http://\S+)", line)
                assert found is not None, line + (await process.stderr.read()).decode()  # type: ignore[union-attr]
                port, admin = int(found[1]), found[2]
                while (await asyncio.to_thread(calls.get, admin, "/ready")).status != 200:
                    await asyncio.sleep(0.01)
                room = clients_max(OPEN_FILES, 1)
                streams = [asyncio.ensure_future(ask(port, post(chat(stream=True)))) for _ in range(400)]
                await engine.request(room)
                refused = set()
                while len(refused) < 400 - room:
                    refused, _ = await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
                assert {(task.result().status, task.result().code) for task in refused} == {(503, "connections_full")}
                metrics = (await asyncio.to_thread(calls.get, admin, "/metrics")).body.decode()
                assert f'isochrone_instance_state{{instance="{engine.id}",state="ready"}} 1.0' in metrics
                beats = engine.seen
                while engine.seen < beats + 3:  # heartbeats and scrapes go on
                    await asyncio.sleep(0.01)
                gate.set()
                served = [await task for task in streams if task not in refused]
                assert len(served) == room
                assert {answer.body for answer in served} == {b"".join([*TOKENS, DONE])}
                again = await asyncio.gather(*(ask(port, post(chat(stream=True))) for _ in range(50)))
                assert {answer.status for answer in again} == {200}
                assert (await ask(port, get("/health"))).status == 200
            finally:
                process.send_signal(signal.SIGTERM)
                _, said = await process.communicate()
            assert process.returncode == 0
            assert f"{OPEN_FILES} open files: at most {room} clients at once" in said.decode()

    run(test())


def test_z02_a_want_of_our_own_is_no_fault_of_an_instance() -> None:
    """A connection that fails because we have no open file left counts as busy."""

    async def test() -> None:
        async with FakeEngine() as engine, serving(engine) as served:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            async with RawClient(served.port) as client:
                client.send(get("/health"))
                await client.answer()
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # what is open stays open
                try:
                    client.send(post(chat()))
                    answer = await client.answer()
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                assert (answer.status, answer.code) == (503, "instances_full")
                assert "retry-after" in answer.headers
                assert [(view.state, view.failures) for view in served.gateway.cluster.instances()] == [("ready", 0)]
                client.send(post(chat()))
                assert (await client.answer()).status == 200
            assert is_ours(OSError(24, "too many"))
            assert not is_ours(ConnectionRefusedError(111, "no"))
            served.assert_nothing_left()

    run(test())
