"""`isochrone keys create|list|revoke`: who may use the gateway. Works on the store, whether a gateway runs or not."""

import os
import re
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from isochrone.access.keys import SECRET_BYTES, StoredKey, digest_of, text_of
from isochrone.adapters.keystore import KeyStore, StoreError, open_store
from isochrone.config.driver import KeyPlan
from isochrone.config.loader import load
from isochrone.config.problems import ConfigError

T = TypeVar("T")

SPANS_S = {"h": 3600, "d": 86_400, "w": 7 * 86_400}
"""Units of `--expires`."""
ID_BYTES = 6
NAME_CHARS_MAX = 128
"""Of tenant and name."""

_tenant = re.compile(rf"[\w.:@+\[\]-]{{1,{NAME_CHARS_MAX}}}").fullmatch


def plan_of(store: str | None, config: str | None) -> KeyPlan:
    """The store that is named directly, or by a configuration file."""
    if store is not None:
        if re.match(r"rediss?://", store):
            if "@" in store:
                raise click.UsageError("--store: no password in the URL; it comes from $ISOCHRONE_REDIS_PASSWORD.")
            return KeyPlan(redis=store, redis_password=os.environ.get("ISOCHRONE_REDIS_PASSWORD"))
        return KeyPlan(file=store)
    if config is None:
        raise click.UsageError("Name the store: --store FILE (or redis://HOST:PORT), or --config FILE.")
    try:
        plan = load(Path(config)).keys
    except ConfigError as error:
        raise click.UsageError("\n".join(error.problems)) from None
    if plan.file is None and plan.redis is None:
        raise click.UsageError(f"{config} names no store of keys; set keys.file.")
    return plan


def with_store(plan: KeyPlan, act: Callable[[KeyStore], T], new: bool = False) -> T:
    """Do one thing with the store, and close it. `new`: a file that is not there yet is made."""
    if plan.file is not None and not new and not Path(plan.file).exists():
        raise click.ClickException(f"{plan.file}: there is no such file.")
    try:
        store = open_store(plan)
        try:
            return act(store)
        finally:
            store.close()
    except StoreError as error:
        raise click.ClickException(str(error)) from None


def stored_at(command: Any) -> Any:
    """The options that name the store."""
    command = click.option(
        "--store", metavar="FILE|URL", envvar="ISOCHRONE_KEYS", help="SQLite file, or redis://HOST:PORT/DB."
    )(command)
    return click.option("--config", metavar="FILE", help="Take the store from this configuration file.")(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """API keys: make, list and revoke them.

    \b
      isochrone keys create --store keys.db --tenant research --name ci
      isochrone keys list --store keys.db
      isochrone keys revoke --store keys.db key-3f9a0c2b7d11
    A gateway that runs on the store (keys.file) takes changes in within a second.
    """


@command.command()
@click.option("--tenant", required=True, help="On whose behalf its requests come; limits are the tenant's.")
@click.option("--name", default="", help="What you call it.")
@click.option("--expires", metavar="SPAN", help="In how long it ends: 12h, 90d, 4w. Never without it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@stored_at
def create(tenant: str, name: str, expires: str | None, as_json: bool, store: str | None, config: str | None) -> None:
    """Make a key. It is shown once, here and now; only its hash is kept."""
    if not _tenant(tenant):
        raise click.BadParameter(f"{tenant!r}: letters, digits and . : @ + - _ only", param_hint="--tenant")
    if len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise click.BadParameter(f"at most {NAME_CHARS_MAX} printable characters", param_hint="--name")
    now_s = int(time.time())
    text = text_of(secrets.token_bytes(SECRET_BYTES))
    key = StoredKey(
        id=f"key-{secrets.token_hex(ID_BYTES)}",
        digest=digest_of(text.encode()),
        tenant=tenant,
        name=name,
        created_s=now_s,
        expires_s=None if expires is None else now_s + span_s(expires),
    )
    with_store(plan_of(store, config), lambda keys: keys.add(key), new=True)
    if as_json:
        click.echo(msgspec.json.encode({**shown(key), "key": text}))
    else:
        click.echo(f"{text}\n", nl=False)
        click.echo(f"{key.id} of {tenant}. Keep the key now: it cannot be shown again.", err=True)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@stored_at
def list_keys(as_json: bool, store: str | None, config: str | None) -> None:
    """All keys, revoked ones included. The keys themselves are not known here."""
    now_s = int(time.time())
    keys = with_store(plan_of(store, config), lambda found: found.keys())
    for key in keys:
        if as_json:
            click.echo(msgspec.json.encode(shown(key)))
        else:
            click.echo(f"{key.id}  {state(key, now_s):<8} {key.tenant:<20} {day(key.created_s)}  {key.name}")
    if not keys and not as_json:
        click.echo("There are no keys yet; make one with: isochrone keys create --tenant NAME", err=True)


@command.command()
@click.argument("key")
@stored_at
def revoke(key: str, store: str | None, config: str | None) -> None:
    """Revoke the key of this id (key-...), for good. Requests that are running end as they would."""
    if not key.startswith("key-"):
        raise click.BadParameter("give the key's id (key-...), as `isochrone keys list` shows it", param_hint="KEY")
    if not with_store(plan_of(store, config), lambda keys: keys.revoke(key, int(time.time()))):
        raise click.ClickException(f"There is no key {key!r}.")
    click.echo(f"{key} is revoked.")


def span_s(text: str) -> int:
    """`90d` in seconds."""
    number, unit = text[:-1], text[-1:]
    if unit not in SPANS_S or not number.isascii() or not number.isdigit() or not 0 < int(number[:9]) <= 100_000:
        raise click.BadParameter(f"{text[:20]!r}: expected a span like 12h, 90d or 4w", param_hint="--expires")
    return int(number) * SPANS_S[unit]


def state(key: StoredKey, now_s: int) -> str:
    """In one word."""
    if key.revoked_s is not None:
        return "revoked"
    return "expired" if key.expires_s is not None and key.expires_s <= now_s else "active"


def shown(key: StoredKey) -> dict[str, object]:
    """A key as JSON: everything but its hash."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "state": state(key, int(time.time())),
        "created": moment(key.created_s),
        "expires": moment(key.expires_s),
        "revoked": moment(key.revoked_s),
    }


def moment(time_s: int | None) -> str | None:
    """ISO 8601, UTC."""
    return None if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def day(time_s: int) -> str:
    """Its date."""
    return datetime.fromtimestamp(time_s, UTC).date().isoformat()
