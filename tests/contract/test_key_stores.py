"""What every store of keys and usage does, over SQLite and a real Redis."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from isochrone.access.keys import StoredKey, digest_of
from isochrone.adapters.keystore import KeyStore, StoreError, open_store
from isochrone.config.driver import KeyPlan
from isochrone.observe.usage import UsageRow
from tests.support.redis_server import redis_server

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis"), "--requirepass", PASSWORD) as url:
        yield url


@pytest.fixture(params=["sqlite", "redis"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> KeyPlan:
    if request.param == "sqlite":
        return KeyPlan(file=str(tmp_path / "keys.db"))
    plan = KeyPlan(redis=request.getfixturevalue("redis_url"), redis_password=PASSWORD)
    store = open_store(plan)
    store._redis.flushall()  # type: ignore[attr-defined]
    store.close()
    return plan


@pytest.fixture
def store(plan: KeyPlan) -> Iterator[KeyStore]:
    store = open_store(plan)
    yield store
    store.close()


def key(number: int, **changes: object) -> StoredKey:
    made = StoredKey(
        id=f"key-{number}", digest=digest_of(b"%d" % number), tenant="acme", name="ci", created_s=1000 + number
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def test_what_was_added_is_listed(store: KeyStore, plan: KeyPlan) -> None:
    made = [key(1), key(2, expires_s=5000, name="snow ☃"), key(3, tenant="other")]
    for one in reversed(made):
        store.add(one)
    assert store.keys() == made
    second = open_store(plan)
    assert second.keys() == made
    second.close()


def test_an_id_is_given_once(store: KeyStore) -> None:
    store.add(key(1))
    with pytest.raises(StoreError):
        store.add(key(1, tenant="thief"))
    assert store.keys() == [key(1)]


def test_revoking_is_for_good(store: KeyStore) -> None:
    store.add(key(1))
    assert store.revoke("key-1", 2000)
    assert store.revoke("key-1", 3000)
    assert not store.revoke("key-2", 2000)
    assert store.keys() == [key(1, revoked_s=2000)]


def test_only_what_is_newer_is_read(store: KeyStore, plan: KeyPlan) -> None:
    gateway = open_store(plan)
    first = gateway.changes(0)
    assert (first.keys, first.version) == ([], 0)
    store.add(key(1))
    store.add(key(2))
    second = gateway.changes(first.version)
    assert sorted(one.id for one in second.keys) == ["key-1", "key-2"]
    assert not second.whole
    assert gateway.changes(second.version).keys == []
    store.revoke("key-1", 2000)
    third = gateway.changes(second.version)
    assert (third.keys, third.whole) == ([key(1, revoked_s=2000)], False)
    assert sorted(one.id for one in gateway.changes(0).keys) == ["key-1", "key-2"]
    gateway.close()


def test_usage_adds_up(store: KeyStore, plan: KeyPlan) -> None:
    def row(day: int, **counts: int) -> UsageRow:
        return UsageRow(day=day, tenant="acme", key="key-1", model="org/m", **counts)

    store.add_usage([row(5, requests=1, prompt_tokens=10), row(6, requests=2, refused=2)])
    other = open_store(plan)
    other.add_usage([row(5, requests=1, prompt_tokens=2**40, output_tokens=3, cached_tokens=1, failed=1)])
    other.close()
    summed = row(5, requests=2, failed=1, prompt_tokens=2**40 + 10, cached_tokens=1, output_tokens=3)
    assert store.usage(0, 100) == [summed, row(6, requests=2, refused=2)]
    assert store.usage(6, 6) == [row(6, requests=2, refused=2)]
    assert store.usage(7, 99) == []
    store.add_usage([])
    assert len(store.usage(0, 100)) == 2


def test_two_writers_at_once_lose_nothing(plan: KeyPlan) -> None:
    """Each from its own thread and connection, as gateway and command line do."""
    rounds = 15
    failed: list[Exception] = []

    def write(writer: int) -> None:
        store = open_store(plan)
        try:
            for number in range(rounds):
                store.add(key(100 * writer + number))
                store.add_usage([UsageRow(day=1, tenant="t", key="k", model="m", requests=1)])
        except Exception as error:
            failed.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    store = open_store(plan)
    assert len(store.keys()) == 2 * rounds
    assert store.usage(1, 1)[0].requests == 2 * rounds
    assert store.changes(0).version == 2 * rounds
    store.close()


def test_another_set_of_keys_is_noticed(plan: KeyPlan, tmp_path: Path) -> None:
    """A backup that was put back, or a flushed Redis: keys that are no longer there must not stay in force."""
    store = open_store(plan)
    gateway = open_store(plan)
    for number in (1, 2, 3):
        store.add(key(number))
    version = gateway.changes(0).version
    if plan.file is not None:
        store.close()
        (tmp_path / "new.db").unlink(missing_ok=True)
        store = open_store(KeyPlan(file=str(tmp_path / "new.db")))
        for number in (7, 8, 9):
            store.add(key(number))
        (tmp_path / "new.db").rename(plan.file)
    else:
        store._redis.flushall()  # type: ignore[attr-defined]
        for number in (7, 8, 9):
            store.add(key(number))
    changes = gateway.changes(version)
    assert changes.whole
    assert sorted(one.id for one in changes.keys) == ["key-7", "key-8", "key-9"]
    assert gateway.changes(changes.version).keys == []
    store.close()
    gateway.close()


def test_errors_name_the_store_and_no_secret(tmp_path: Path, redis_url: str) -> None:
    with pytest.raises(StoreError, match=r"nowhere/keys\.db: No such file"):
        open_store(KeyPlan(file=str(tmp_path / "nowhere" / "keys.db")))
    (tmp_path / "text.db").write_text("this is no database, and long enough to be looked at " * 20)
    with pytest.raises(StoreError, match=r"text\.db: file is not a database"):
        open_store(KeyPlan(file=str(tmp_path / "text.db")))
    with pytest.raises(StoreError) as caught:
        open_store(KeyPlan(redis=redis_url, redis_password="wrong-pass"))
    assert "wrong-pass" not in str(caught.value)
    with pytest.raises(StoreError, match=r"redis 127\.0\.0\.1:1"):
        open_store(KeyPlan(redis="redis://127.0.0.1:1/0"))


def test_the_file_is_for_its_owner_alone_and_of_no_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    store = open_store(KeyPlan(file=str(path)))
    assert path.stat().st_mode & 0o777 == 0o600
    store._database.execute("PRAGMA user_version = 99")  # type: ignore[attr-defined]
    store.close()
    with pytest.raises(StoreError, match="newer version"):
        open_store(KeyPlan(file=str(path)))
