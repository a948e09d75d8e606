"""Keys and usage as operators meet them: the command line, a gateway that runs, its admin port and its metrics."""

import csv
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from isochrone.access.keys import digest_of
from isochrone.cli.main import main
from isochrone.gateway.service import StartError
from tests.integration.test_service import ANSWER, ask, serving, until
from tests.support import raw_client
from tests.support.fake_engine import FakeEngine
from tests.support.issuer import BOTH, ISSUER, token
from tests.support.raw_client import chat, get, post
from tests.support.running import run

QUICK_KEYS = {"reload_s": 0.01, "flush_s": 0.02}


def isochrone(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == status, result.output
    return result


def create(store: Path, *arguments: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(isochrone("keys", "create", "--store", str(store), "--json", *arguments).stdout)
    return made


def listed(store: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in isochrone("keys", "list", "--store", str(store), "--json").stdout.splitlines()]


def test_a_key_is_shown_once(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    made = create(store, "--tenant", "acme", "--name", "ci", "--expires", "90d")
    assert made["key"].startswith("iso-")
    assert (made["tenant"], made["name"], made["state"]) == ("acme", "ci", "active")
    plain = isochrone("keys", "create", "--store", str(store), "--tenant", "acme")
    assert plain.stdout.strip().startswith("iso-")
    assert len(plain.stdout.split()) == 1  # to be piped into a secret store
    assert "key-" in plain.stderr
    shown = isochrone("keys", "list", "--store", str(store)).output + str(listed(store))
    for key in (made["key"], plain.stdout.strip()):
        assert key not in shown
        assert digest_of(key.encode()).hex() not in shown
        assert key.encode() not in store.read_bytes()


def test_revoking(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    made = create(store, "--tenant", "acme")
    assert "revoked" in isochrone("keys", "revoke", "--store", str(store), made["id"]).output
    assert [one["state"] for one in listed(store)] == ["revoked"]
    assert "no key" in isochrone("keys", "revoke", "--store", str(store), "key-000000000000", status=1).output
    typed = isochrone("keys", "revoke", "--store", str(store), made["key"], status=2).output
    assert "key's id" in typed
    assert made["key"] not in typed


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("keys", "list"), 2, "--store"),
        (("keys", "list", "--store", "nowhere.db"), 1, "nowhere.db: there is no such file"),
        (("usage", "--store", "nowhere.db"), 1, "nowhere.db"),
        (("keys", "create", "--store", "k.db", "--tenant", "a b"), 2, "letters, digits"),
        (("keys", "create", "--store", "k.db", "--tenant", "a", "--expires", "soon"), 2, "90d"),
        (("keys", "create", "--store", "k.db", "--tenant", "a", "--name", "a\nb"), 2, "printable"),
        (("usage", "--store", "k.db", "--first", "monday"), 2, "2026-01-31"),
        (("usage", "--store", "k.db", "--by", "colour"), 2, "day, tenant, key, model"),
        (("keys", "list", "--store", "redis://127.0.0.1:1/0"), 1, "redis 127.0.0.1:1"),
    ],
)
def test_wrong_calls_say_what_to_do(
    arguments: tuple[str, ...], status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in " ".join(isochrone(*arguments, status=status).output.split())
    assert not (tmp_path / "nowhere.db").exists()


def test_the_store_may_be_named_by_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "isochrone.yaml"
    config.write_text(f"keys: {{file: {tmp_path}/keys.db}}")
    isochrone("keys", "create", "--config", str(config), "--tenant", "acme")
    assert [one["tenant"] for one in listed(tmp_path / "keys.db")] == ["acme"]
    config.write_text("policy: random")
    assert "keys.file" in isochrone("keys", "list", "--config", str(config), status=2).output


async def complete(service: Any, key: str, body: bytes | None = None) -> raw_client.Answer:
    request = post(body or chat(), "/v1/chat/completions", f"authorization: Bearer {key}")
    return await raw_client.ask(service.port, request)


def test_a_running_gateway_follows_its_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Create, use, revoke; usage on the admin port, in the metrics, in the log and from the command line."""
    caplog.set_level(logging.DEBUG)
    store, log = tmp_path / "keys.db", tmp_path / "log"
    seen: list[str] = []

    async def test() -> None:
        async with FakeEngine() as engine:
            engine.script = ANSWER
            keys = {"file": str(store), **QUICK_KEYS}
            tenants = {"small": {"requests_per_minute": 1}}
            async with serving(engine, keys=keys, tenants=tenants, access_log=str(log)) as service:
                await until(service, "/ready", lambda answer: answer.status == 200)
                made = create(store, "--tenant", "acme", "--name", "ci")
                small = create(store, "--tenant", "small")
                seen.extend([made["key"], small["key"]])
                while (await complete(service, made["key"])).status == 401:
                    pass
                while (await complete(service, small["key"])).status == 401:
                    pass
                assert (await complete(service, small["key"])).status == 429
                standing = (await ask(service, "/admin/tenants")).json()["tenants"]
                assert [
                    (
                        one["requests_per_minute"]["limit"],
                        one["requests_per_minute"]["remaining"],
                        one["running_requests"],
                    )
                    for one in standing
                    if one["tenant"] == "small"
                ] == [(1, 0, 0)]
                used = (await ask(service, "/admin/usage?by=tenant,key,model")).json()["usage"]
                assert {"tenant": "acme", "key": made["id"], "model": "m", "requests": 1, "refused": 0, "failed": 0,
                        "prompt_tokens": 5, "cached_tokens": 0, "output_tokens": 1} in used  # fmt: skip
                assert {"tenant": "small", "key": small["id"], "model": "", "requests": 1, "refused": 1, "failed": 0,
                        "prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0} in used  # fmt: skip
                assert (await ask(service, "/admin/usage?first=soon")).status == 400
                metrics = (await ask(service, "/metrics")).body.decode()
                seen.append(metrics.replace(made["id"], ""))
                for line in (
                    'isochrone_tenant_requests_total{model="m",tenant="acme"} 1.0',
                    'isochrone_tenant_output_tokens_total{model="m",tenant="acme"} 1.0',
                    'isochrone_tenant_refusals_total{reason="rate_limit_exceeded",tenant="small"} 1.0',
                    'isochrone_tenant_running_requests{tenant="acme"} 0.0',
                    "isochrone_keys 2.0",
                    "isochrone_key_store_errors_total 0.0",
                ):
                    assert line in metrics
                isochrone("keys", "revoke", "--store", str(store), made["id"])
                while (await complete(service, made["key"])).status != 401:
                    pass
                assert (await raw_client.ask(service.port, get("/v1/models", "x-api-key: iso-x"))).status == 401
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert {(one["tenant"], one["key"]) for one in lines} >= {("acme", made["id"]), ("small", small["id"])}
        rows = list(csv.DictReader(io.StringIO(isochrone("usage", "--store", str(store), "--csv").stdout)))
        mine = [row for row in rows if row["key"] == small["id"] and row["model"] == "m"]
        assert [(row["requests"], row["prompt_tokens"], row["output_tokens"]) for row in mine] == [("1", "5", "1")]
        summed = [
            json.loads(line)
            for line in isochrone("usage", "--store", str(store), "--json", "--by", "tenant").stdout.splitlines()
        ]
        assert {one["tenant"] for one in summed} == {"acme", "small", "anonymous"}
        assert "acme" in isochrone("usage", "--store", str(store)).output

    run(test())
    written = log.read_text() + caplog.text + seen.pop()
    for key in seen:
        assert key not in written
        assert digest_of(key.encode()).hex() not in written


def test_a_store_that_cannot_be_opened_is_said_at_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(StartError, match=r"keys: .*nowhere/keys\.db: No such file"):
            async with serving(keys={"file": str(tmp_path / "nowhere" / "keys.db")}):
                pass

    run(test())


def test_while_the_store_is_away_keys_stay_in_force_and_usage_waits(tmp_path: Path) -> None:
    store, aside = tmp_path / "keys.db", tmp_path / "aside.db"
    made = create(store, "--tenant", "acme")

    async def test() -> None:
        async with FakeEngine() as engine:
            engine.script = ANSWER
            async with serving(engine, keys={"file": str(store), **QUICK_KEYS}) as service:
                await until(service, "/ready", lambda answer: answer.status == 200)
                store.rename(aside)
                assert service.keys is not None
                while not service.keys.errors:
                    assert (await complete(service, made["key"])).status == 200
                aside.rename(store)
                assert (await complete(service, made["key"])).status == 200
                used = (await ask(service, "/admin/usage?by=tenant")).json()["usage"]
        after = json.loads(isochrone("usage", "--store", str(store), "--json", "--by", "tenant").stdout)
        assert after["requests"] == used[0]["requests"] == len(engine.requests)

    run(test())


def test_tokens_of_an_issuer(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(json.dumps(BOTH))
    jwt = {"issuer": ISSUER, "audience": "gateway", "jwks": f"file:{tmp_path}/jwks.json"}

    async def test() -> None:
        async with FakeEngine() as engine:
            engine.script = ANSWER
            async with serving(engine, jwt=jwt, tenants={"acme": {"models": ["m"]}}) as service:
                await until(service, "/ready", lambda answer: answer.status == 200)
                good = token().decode()
                assert (await complete(service, good)).status == 200
                assert (await complete(service, good[:-4])).status == 401
                assert (await complete(service, token(tenant="evil").decode())).status == 403
                assert (await complete(service, good, chat(model="other"))).code == "model_not_allowed"
                assert good.encode() not in engine.requests[0].head
                used = (await ask(service, "/admin/usage?by=tenant,key")).json()["usage"]
                assert ("acme", "jwt", 2) in [(one["tenant"], one["key"], one["requests"]) for one in used]
        jwt["jwks"] = "file:nowhere"
        with pytest.raises(StartError, match="jwt: nowhere"):
            async with serving(jwt=jwt):
                pass

    run(test())
