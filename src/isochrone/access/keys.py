"""API keys: what they look like, how a request shows one, and the ring in which they are found.

A key is `iso-` and 32 random bytes. Only its SHA-256 is ever stored or looked up: a copy of the store opens nothing,
and since nobody can steer what a hash begins with, how long the look-up takes tells nothing about keys that there are.
A slow hash, as passwords need it, would add nothing: 256 random bits cannot be guessed at any speed.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec

PREFIX = "iso-"
"""Begins every key, so that scanners for leaked secrets can find one."""
SECRET_BYTES = 32
CREDENTIAL_BYTES_MAX = 8192
"""Longest key or token that is looked at; a longer one is as good as wrong."""


class Key(msgspec.Struct, frozen=True, gc=False):
    """What is known of a key. The key itself is not."""

    id: str
    """Public name: in lists, logs and records."""
    tenant: str
    expires_s: int | None = None
    """Seconds since 1970; None: never."""


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key in a store."""

    id: str
    digest: bytes
    """SHA-256 of the key."""
    tenant: str
    name: str = ""
    """What its owner calls it."""
    created_s: int
    """All times are seconds since 1970."""
    expires_s: int | None = None
    revoked_s: int | None = None


def text_of(secret: bytes) -> str:
    """The key made from SECRET_BYTES random bytes."""
    assert len(secret) == SECRET_BYTES
    return PREFIX + urlsafe_b64encode(secret).decode().rstrip("=")


def digest_of(credential: bytes) -> bytes:
    """Under what a key or token is looked up."""
    return sha256(credential).digest()


def credential_in(read: Mapping[bytes, bytes]) -> bytes | None:
    """The key or token that the headers show: `Authorization: Bearer ...`, else `x-api-key`; None without either.

    Empty for what cannot be one: another scheme, or too long.
    """
    value = read.get(b"authorization")
    if value is None:
        token = read.get(b"x-api-key")
        if token is None:
            return None
        token = token.strip()
    elif value[:7].lower() == b"bearer ":
        token = value[7:].strip()
    else:
        return b""
    return token if len(token) <= CREDENTIAL_BYTES_MAX else b""


class KeyRing:
    """All keys that are in force, by digest. A dict: 100,000 keys are found as quickly as ten."""

    def __init__(self) -> None:
        self._keys: dict[bytes, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, digest: bytes) -> Key | None:
        """The key, which may have expired; None if there is none."""
        return self._keys.get(digest)

    def update(self, changed: Iterable[StoredKey]) -> None:
        """Take in keys that are new, other than before, or revoked."""
        for key in changed:
            if key.revoked_s is None:
                self._keys[key.digest] = Key(key.id, key.tenant, key.expires_s)
            else:
                self._keys.pop(key.digest, None)

    def replace(self, keys: Iterable[StoredKey]) -> None:
        """These, and no others."""
        self._keys = {}
        self.update(keys)
