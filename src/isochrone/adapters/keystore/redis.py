"""Keys and usage in Redis or Valkey, shared by several gateways.

| key | kind | holds |
|---|---|---|
| `{isochrone}:keys` | hash | id -> the key as JSON |
| `{isochrone}:versions` | sorted set | id by the version of its last change |
| `{isochrone}:version` | counter | the latest version |
| `{isochrone}:epoch` | string | random, made with the first key: another one means another set of keys |
| `{isochrone}:days` | set | days that have usage |
| `{isochrone}:usage:DAY` | hash | JSON of [tenant, key, model, count's name] -> count |

The braces keep all of it in one slot of a cluster, so that a transaction can hold it together.
"""

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
import redis

from isochrone.access.keys import StoredKey
from isochrone.adapters.keystore import Changes, StoreError
from isochrone.observe.usage import COUNTS, UsageRow

CALL_S_MAX = 5.0
"""How long a call waits to connect, and for an answer."""

KEYS, VERSIONS, VERSION, EPOCH, DAYS = (
    f"{{isochrone}}:{name}" for name in ("keys", "versions", "version", "epoch", "days")
)  # fmt: skip
USAGE = "{{isochrone}}:usage:{}"

_encode = msgspec.json.encode
_key = msgspec.json.Decoder(StoredKey).decode
_place = msgspec.json.Decoder(tuple[str, str, str, str]).decode


class RedisStore:
    """One client; calls may come from any thread, one at a time."""

    def __init__(self, url: str, password: str | None = None) -> None:
        self._name = urlsplit(url).netloc
        self._known_epoch: bytes | None = None
        with self._named():
            self._redis: redis.Redis = redis.Redis.from_url(
                url, password=password, socket_timeout=CALL_S_MAX, socket_connect_timeout=CALL_S_MAX
            )
            self._redis.ping()

    def add(self, key: StoredKey) -> None:
        def change(pipe: Any) -> None:
            if pipe.hexists(KEYS, key.id):
                raise StoreError(f"redis {self._name}: there is a key {key.id} already")
            version = int(pipe.get(VERSION) or 0) + 1
            pipe.multi()
            pipe.set(EPOCH, secrets.token_hex(8), nx=True)
            pipe.set(VERSION, version)
            pipe.hset(KEYS, key.id, _encode(key))
            pipe.zadd(VERSIONS, {key.id: version})

        with self._named():
            self._redis.transaction(change, KEYS, VERSION)

    def keys(self) -> list[StoredKey]:
        with self._named():
            found: Any = self._redis.hvals(KEYS)
            return sorted((_key(text) for text in found), key=lambda key: (key.created_s, key.id))

    def revoke(self, key: str, at_s: int) -> bool:
        found = False

        def change(pipe: Any) -> None:
            nonlocal found
            text = pipe.hget(KEYS, key)
            found = text is not None
            version = int(pipe.get(VERSION) or 0) + 1
            pipe.multi()
            if text is None or _key(text).revoked_s is not None:
                return
            pipe.set(VERSION, version)
            pipe.hset(KEYS, key, _encode(msgspec.structs.replace(_key(text), revoked_s=at_s)))
            pipe.zadd(VERSIONS, {key: version})

        with self._named():
            self._redis.transaction(change, KEYS, VERSION)
        return found

    def changes(self, since: int) -> Changes:
        with self._named():
            epoch, text = self._pair(self._redis.mget(EPOCH, VERSION))
            version = int(text or 0)
            whole = version < since or (since > 0 and epoch != self._known_epoch)
            self._known_epoch = epoch
            if version == since and not whole:
                return Changes([], version)
            ids: Any = self._redis.zrangebyscore(VERSIONS, f"({0 if whole else since}", version)
            texts: Any = self._redis.hmget(KEYS, ids) if ids else []
            return Changes([_key(text) for text in texts if text is not None], version, whole)

    def add_usage(self, rows: Iterable[UsageRow]) -> None:
        with self._named(), self._redis.pipeline(transaction=True) as pipe:
            for row in rows:
                pipe.sadd(DAYS, row.day)
                for name in COUNTS:
                    if count := getattr(row, name):
                        pipe.hincrby(USAGE.format(row.day), _encode((row.tenant, row.key, row.model, name)), count)
            pipe.execute()

    def usage(self, first_day: int, last_day: int) -> list[UsageRow]:
        rows: dict[tuple[int, str, str, str], UsageRow] = {}
        with self._named():
            days: Any = self._redis.smembers(DAYS)
            for day in sorted(int(day) for day in days if first_day <= int(day) <= last_day):
                counts: Any = self._redis.hgetall(USAGE.format(day))
                for field, count in counts.items():
                    tenant, key, model, name = _place(field)
                    row = rows.setdefault(
                        (day, tenant, key, model), UsageRow(day=day, tenant=tenant, key=key, model=model)
                    )  # fmt: skip
                    setattr(row, name, int(count))
        return [rows[place] for place in sorted(rows)]

    def close(self) -> None:
        self._redis.close()

    @staticmethod
    def _pair(found: Any) -> tuple[bytes | None, bytes | None]:
        first, second = found
        return first, second

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise StoreError(f"redis {self._name}: {error}") from None
