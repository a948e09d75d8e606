"""TLS towards clients and towards instances, with certificates of an authority made for the test."""

import asyncio
import ssl
from pathlib import Path

import pytest

from isochrone.config.driver import Link, Tls
from isochrone.gateway.service import StartError
from tests.support import service as whole
from tests.support.certificates import Authority
from tests.support.fake_engine import DONE, FakeEngine, delta, json_answer, sse_answer
from tests.support.raw_client import Answer, RawClient, ask, chat, get, post
from tests.support.running import join, run, serving

ANSWER = json_answer({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


class TlsClient(RawClient):
    """The raw client over TLS."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        self._context = context

    async def __aenter__(self) -> "TlsClient":
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._context, server_hostname="gateway.test"
        )
        return self


def client_side(authority: Authority, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def engine_side(authority: Authority, clients: Authority | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(clients.ca) if clients else None)
    context.load_cert_chain(*authority.sign("localhost"))
    context.verify_mode = ssl.CERT_REQUIRED if clients else ssl.CERT_NONE
    return context


async def over_tls(port: int, context: ssl.SSLContext, request: bytes) -> Answer:
    async with TlsClient(port, context) as client:
        client.send(request)
        return await client.answer()


def test_clients_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("gateway.test")

    async def test() -> None:
        listen = {"port": 0, "half_close": "allow", "tls": {"cert": str(cert), "key": str(key)}}
        async with FakeEngine() as engine, whole.serving(engine, listen=listen) as service:
            engine.script = sse_answer([delta("one", "stop"), DONE])
            while not service.cluster.can_serve():
                await asyncio.sleep(0.002)
            context = client_side(authority)
            async with TlsClient(service.port, context) as client:
                for _ in range(2):
                    client.send(post(chat(stream=True)) + get("/health"))
                    assert (await client.answer()).body == delta("one", "stop") + DONE
                    assert (await client.answer()).status == 200
            refused = await over_tls(service.port, context, post(b"{}").replace(b"Length: 2", b"Length: 999999999999"))
            assert refused.status == 413
            with pytest.raises(ssl.SSLError):
                await over_tls(service.port, ssl.create_default_context(), get("/health"))
            async with RawClient(service.port) as plain:
                plain.send(get("/health"))
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await plain.answer()
            engine.script = _until_the_client_leaves
            async with TlsClient(service.port, context) as client:
                client.send(post(chat()))
                request = await engine.request(len(engine.requests) + 1)
                client.close()
                await request.peer_closed.wait()

    run(test())


async def _until_the_client_leaves(wire: object) -> None:
    await wire.request.peer_closed.wait()  # type: ignore[attr-defined]


def test_clients_must_show_a_certificate_where_that_is_asked_for(tmp_path: Path) -> None:
    ours, theirs, strangers = Authority(tmp_path), Authority(tmp_path, "clients"), Authority(tmp_path, "strangers")
    cert, key = ours.sign("gateway.test")

    async def test() -> None:
        tls = {"cert": str(cert), "key": str(key), "client_ca": str(theirs.ca)}
        async with whole.serving(listen={"port": 0, "tls": tls}) as service:
            known = await over_tls(service.port, client_side(ours, theirs.sign("somebody")), get("/v1/models"))
            assert known.status == 200
            for pair in (None, strangers.sign("nobody")):
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await over_tls(service.port, client_side(ours, pair), get("/v1/models"))

    run(test())


def test_instances_over_mutual_tls(tmp_path: Path) -> None:
    """An engine that asks for our certificate: with the right one, with none, with a stranger's."""
    theirs, ours, strangers = Authority(tmp_path), Authority(tmp_path, "ours"), Authority(tmp_path, "strangers")
    cert, key = ours.sign("gateway")
    other_cert, other_key = strangers.sign("gateway")

    async def test() -> None:
        async with FakeEngine(tls=engine_side(theirs, ours)) as engine, serving() as served:
            engine.script = ANSWER
            url, ca = f"https://localhost:{engine.port}", str(theirs.ca)
            links = {
                "right": Tls(ca=ca, client_cert=str(cert), client_key=str(key)),
                "none": Tls(ca=ca),
                "strangers": Tls(ca=ca, client_cert=str(other_cert), client_key=str(other_key)),
                "wrong authority": Tls(ca=str(ours.ca), client_cert=str(cert), client_key=str(key)),
            }
            for name, tls in links.items():
                join(served.gateway, name, url, (name,), link=Link(tls=tls))
                answer = await ask(served.port, post(chat(model=name)))
                assert answer.status == (200 if name == "right" else 502), name
            assert (await served.gateway.http_get("right", "/health", 2.0)).status == 200
            assert len(engine.requests) == 1
            served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("tls", [{"cert": "/nonexistent"}, {"cert": __file__}])
def test_a_certificate_that_cannot_be_read_is_told(tls: dict[str, str]) -> None:
    async def test() -> None:
        with pytest.raises(StartError, match=r"listen\.tls"):
            async with whole.serving(listen={"port": 0, "tls": tls}):
                pass

    run(test())
