"""Keys: their form, where a request shows one, and the ring."""

import re

import pytest

from isochrone.access.keys import KeyRing, StoredKey, credential_in, digest_of, text_of


def stored(number: int, **changes: object) -> StoredKey:
    return StoredKey(id=f"key-{number}", digest=digest_of(b"%d" % number), tenant="t", created_s=0, **changes)  # type: ignore[arg-type]


def test_a_key_holds_all_its_random_bytes() -> None:
    texts = {text_of(bytes([value]) * 32) for value in range(256)}
    assert len(texts) == 256
    assert all(re.fullmatch(r"iso-[A-Za-z0-9_-]{43}", text) for text in texts)


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, None),
        ({b"authorization": b"Bearer abc"}, b"abc"),
        ({b"authorization": b"BEARER  abc "}, b"abc"),
        ({b"x-api-key": b" abc "}, b"abc"),
        ({b"authorization": b"Bearer abc", b"x-api-key": b"def"}, b"abc"),
        ({b"authorization": b"Basic abc"}, b""),
        ({b"authorization": b"abc"}, b""),
        ({b"authorization": b""}, b""),
        ({b"authorization": b"Bearer"}, b""),
        ({b"x-api-key": b"k" * 8193}, b""),
        ({b"authorization": b"Bearer " + b"k" * 8193}, b""),
    ],
)
def test_where_a_key_is_shown(headers: dict[bytes, bytes], token: bytes | None) -> None:
    assert credential_in(headers) == token


def test_nothing_shown_finds_nothing() -> None:
    ring = KeyRing()
    ring.update([stored(1)])
    assert ring.find(digest_of(b"")) is None


def test_the_ring_follows_its_store() -> None:
    ring = KeyRing()
    ring.update([stored(1), stored(2, expires_s=10)])
    found = ring.find(digest_of(b"1"))
    assert found is not None
    assert (found.id, found.tenant, found.expires_s) == ("key-1", "t", None)
    ring.update([stored(1, revoked_s=5), stored(3, revoked_s=5)])
    assert ring.find(digest_of(b"1")) is None
    assert len(ring) == 1
    ring.replace([stored(4)])
    assert (len(ring), ring.find(digest_of(b"2"))) == (1, None)
