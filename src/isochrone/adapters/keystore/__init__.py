"""Where API keys and usage are kept: one port, and what stands behind it.

Keys are never removed, only revoked, and every change gets the next version number: a gateway asks for what is newer
than what it knows, so that 100,000 keys are read once and a new one costs one row. Calls block; a gateway makes them
from a thread.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from isochrone.access.keys import StoredKey
from isochrone.config.driver import KeyPlan
from isochrone.observe.usage import UsageRow


class StoreError(Exception):
    """The store cannot be used; the message says which and why, and holds no secret."""


class Changes(msgspec.Struct, frozen=True):
    """What is new since a version."""

    keys: list[StoredKey]
    version: int
    whole: bool = False
    """These are all keys there are: forget the others. (The store was put back or replaced.)"""


class KeyStore(Protocol):
    """What every store does. Raises StoreError."""

    def add(self, key: StoredKey) -> None:
        """A new key; its id must be new."""
        ...

    def keys(self) -> list[StoredKey]:
        """All keys, revoked ones included, oldest first."""
        ...

    def revoke(self, key: str, at_s: int) -> bool:
        """Revoke the key of this id, for good; False if there is none. Again: the first time stays."""
        ...

    def changes(self, since: int) -> Changes:
        """Keys that are newer than a version; 0 gives all."""
        ...

    def add_usage(self, rows: Iterable[UsageRow]) -> None:
        """Add these counts to what is there, all or none."""
        ...

    def usage(self, first_day: int, last_day: int) -> list[UsageRow]:
        """What was added for these days (days since 1970), by day, tenant, key and model."""
        ...

    def close(self) -> None: ...


def open_store(plan: KeyPlan) -> KeyStore:
    """The store of the plan. Raises StoreError."""
    if plan.redis is not None:
        from isochrone.adapters.keystore.redis import RedisStore  # a library that most gateways never need

        return RedisStore(plan.redis, plan.redis_password)
    assert plan.file is not None
    from isochrone.adapters.keystore.sqlite import SqliteStore

    return SqliteStore(plan.file)
