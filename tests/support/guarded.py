"""A gateway with keys, tenants and quotas in front of fake engines."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from isochrone.access.keys import StoredKey, digest_of
from isochrone.access.tenants import Tenant
from isochrone.config.driver import Access
from isochrone.nouns.settings import Settings
from tests.support.fake_engine import DONE, FakeEngine, delta, event
from tests.support.raw_client import RawClient
from tests.support.running import Served, serving

KEYS = {
    "iso-good": StoredKey(id="key-good", digest=digest_of(b"iso-good"), tenant="acme", created_s=0),
    "iso-expired": StoredKey(id="key-old", digest=digest_of(b"iso-expired"), tenant="acme", created_s=0, expires_s=1),
    "iso-small": StoredKey(id="key-small", digest=digest_of(b"iso-small"), tenant="small", created_s=0),
    "iso-only-a": StoredKey(id="key-a", digest=digest_of(b"iso-only-a"), tenant="only-a", created_s=0),
}
GOOD = "authorization: Bearer iso-good"
USAGE = {"prompt_tokens": 1, "completion_tokens": 100, "total_tokens": 101}


def tenant(name: str, **limits: object) -> dict[str, Tenant]:
    """A table with this one."""
    return {name: Tenant(name=name, **limits)}  # type: ignore[arg-type]


@asynccontextmanager
async def guarded(
    *engines: FakeEngine,
    tenants: dict[str, Tenant] | None = None,
    anonymous: bool = False,
    keys: bool = True,
    origins: tuple[str, ...] = (),
    models: tuple[str, ...] = ("m",),
    settings: Settings | None = None,
) -> AsyncIterator[Served]:
    """The gateway, which knows KEYS."""
    access = Access(keys=keys, anonymous=anonymous, tenants=tenants or {}, origins=origins)
    async with serving(*engines, access=access, models=models, settings=settings) as served:
        assert served.gateway.door is not None
        served.gateway.door.ring.update(KEYS.values())
        yield served


def bearer(key: str) -> str:
    """The header line that shows the key."""
    return f"authorization: Bearer {key}"


def stream(tokens: int, usage: bool = False) -> list[bytes]:
    """A chat stream of so many tokens."""
    events = [delta("x", "length" if n == tokens - 1 else None) for n in range(tokens)]
    if usage:
        events.append(event({"id": "1", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": tokens}}))
    return [*events, DONE]


async def tokens_in(client: RawClient, count: int) -> None:
    """Read until so many tokens have come."""
    read = b""
    while read.count(b'"content":"x"') < count:
        read += await client.reader.read(65536)
