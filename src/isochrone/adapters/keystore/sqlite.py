"""Keys and usage in one SQLite file, which the gateway and `isochrone keys` have open at the same time.

Plain rollback journal: no second file stays beside it, and users who may write the file may use it. Writes are small
and rare (a key, a batch of usage every few seconds), so readers never wait for long.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from isochrone.access.keys import StoredKey
from isochrone.adapters.keystore import Changes, StoreError
from isochrone.observe.usage import COUNTS, UsageRow

BUSY_S_MAX = 5.0
"""How long a call waits for another process that writes."""
FILE_MODE = 0o600
SCHEMA = 1
"""Written into the file as `user_version`; one from the future is refused."""

_TABLES = f"""
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL, name TEXT NOT NULL,
    created_s INTEGER NOT NULL, expires_s INTEGER, revoked_s INTEGER, version INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS keys_by_version ON keys (version);
CREATE TABLE IF NOT EXISTS usage (
    day INTEGER NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in COUNTS)},
    PRIMARY KEY (day, tenant, key, model)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = {SCHEMA};
"""
_KEY = ("id", "digest", "tenant", "name", "created_s", "expires_s", "revoked_s")
_USAGE = ("day", "tenant", "key", "model", *COUNTS)
_NEXT = "(SELECT coalesce(max(version), 0) + 1 FROM keys)"


class SqliteStore:
    """One open file. Calls may come from any thread, one at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._named():
            self._open()

    def add(self, key: StoredKey) -> None:
        with self._writing() as database:
            places = ", ".join("?" * len(_KEY))
            database.execute(
                f"INSERT INTO keys ({', '.join(_KEY)}, version) VALUES ({places}, {_NEXT})",
                [getattr(key, name) for name in _KEY],
            )

    def keys(self) -> list[StoredKey]:
        with self._named():
            rows = self._database.execute(f"SELECT {', '.join(_KEY)} FROM keys ORDER BY created_s, id")
            return [_key(row) for row in rows]

    def revoke(self, key: str, at_s: int) -> bool:
        with self._writing() as database:
            database.execute(
                f"UPDATE keys SET revoked_s = ?, version = {_NEXT} WHERE id = ? AND revoked_s IS NULL", (at_s, key)
            )
            return database.execute("SELECT 1 FROM keys WHERE id = ?", (key,)).fetchone() is not None

    def changes(self, since: int) -> Changes:
        with self._named():
            if self._was_replaced():
                self._database.close()
                self._open()
                since = -1
            (version,) = self._database.execute("SELECT coalesce(max(version), 0) FROM keys").fetchone()
            whole = version < since or since < 0
            if version == since:
                return Changes([], version)
            rows = self._database.execute(
                f"SELECT {', '.join(_KEY)} FROM keys WHERE version > ? AND version <= ?",
                (0 if whole else since, version),
            )
            return Changes([_key(row) for row in rows], version, whole)

    def add_usage(self, rows: Iterable[UsageRow]) -> None:
        sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS)
        places = ", ".join("?" * len(_USAGE))
        with self._writing() as database:
            database.executemany(
                f"INSERT INTO usage ({', '.join(_USAGE)}) VALUES ({places}) ON CONFLICT DO UPDATE SET {sums}",
                [[getattr(row, name) for name in _USAGE] for row in rows],
            )

    def usage(self, first_day: int, last_day: int) -> list[UsageRow]:
        with self._named():
            rows = self._database.execute(
                f"SELECT {', '.join(_USAGE)} FROM usage WHERE day BETWEEN ? AND ? ORDER BY day, tenant, key, model",
                (first_day, last_day),
            )
            return [UsageRow(**dict(zip(_USAGE, row, strict=True))) for row in rows]

    def close(self) -> None:
        self._database.close()

    def _open(self) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        self._database = sqlite3.connect(
            self.path, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False
        )  # fmt: skip
        found = os.stat(self.path)
        self._file = (found.st_dev, found.st_ino)
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA:
            raise StoreError(f"{self.path}: written by a newer version of isochrone")
        if version < SCHEMA:
            self._database.executescript(_TABLES)

    def _was_replaced(self) -> bool:
        """Another file is there now: a backup that was put back."""
        found = os.stat(self.path)
        return (found.st_dev, found.st_ino) != self._file

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._named():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from None
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}") from None


def _key(row: tuple[object, ...]) -> StoredKey:
    return StoredKey(**dict(zip(_KEY, row, strict=True)))  # type: ignore[arg-type]  # the schema is STRICT
