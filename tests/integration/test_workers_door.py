"""`serve --workers`: TLS, keys and usage. Each relay lets clients in by itself, and all is counted in one place."""

import asyncio
import time
from pathlib import Path
from typing import Any

from isochrone.access.keys import StoredKey, digest_of
from isochrone.adapters.keystore.sqlite import SqliteStore
from tests.integration.test_tls import client_side, over_tls
from tests.integration.test_workers import ANSWER
from tests.support.certificates import Authority
from tests.support.fake_engine import FakeEngine
from tests.support.raw_client import chat, post
from tests.support.running import run
from tests.support.workers import Crew, crew

CLIENTS = 16


async def until_used(made: Crew, requests: int) -> None:
    """Wait until so many are in the store, with their tokens."""
    wanted = ("key-1", requests, 5 * requests)
    while wanted not in [
        (row["key"], row["requests"], row["prompt_tokens"])
        for row in await made.json_list("/admin/usage?by=key", "usage")
    ]:
        await asyncio.sleep(0.02)


def test_tls_and_keys_at_every_relay(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("gateway.test")
    store = SqliteStore(tmp_path / "keys.db")
    store.add(StoredKey(id="key-1", digest=digest_of(b"iso-one"), tenant="acme", created_s=int(time.time())))
    settings: dict[str, Any] = {
        "listen": {"port": 0, "tls": {"cert": str(cert), "key": str(key)}},
        "keys": {"file": str(tmp_path / "keys.db"), "reload_s": 0.02, "flush_s": 0.02},
        "tenants": {"acme": {"concurrent_requests": CLIENTS, "tokens_per_minute": 10_000}},
    }
    context = client_side(authority)

    async def asked(port: int, line: str) -> list[int]:
        request = post(chat(max_tokens=5), "/v1/chat/completions", line)
        answers = await asyncio.gather(*(over_tls(port, context, request) for _ in range(CLIENTS)))
        return sorted({answer.status for answer in answers})

    async def test() -> None:
        async with FakeEngine() as engine, crew(tmp_path, engine, **settings) as made:
            engine.script = ANSWER
            assert await asked(made.port, "x-other: 1") == [401]
            assert await asked(made.port, "authorization: Bearer iso-one") == [200]
            await until_used(made, CLIENTS)
            await made.replaced("brain", made.kill("brain"))  # keys, and what they used, are kept in the store
            assert await asked(made.port, "authorization: Bearer iso-one") == [200]
            await until_used(made, 2 * CLIENTS)
            (tenant,) = await made.json_list("/admin/tenants", "tenants")
            assert (tenant["tenant"], tenant["running_requests"], tenant["reserved_tokens"]) == ("acme", 0, 0)
            store.revoke("key-1", int(time.time()))
            while await asked(made.port, "authorization: Bearer iso-one") != [401]:
                await asyncio.sleep(0.02)
            await made.assert_nothing_left()
            assert await made.stop() == 0

    try:
        run(test())
    finally:
        store.close()
