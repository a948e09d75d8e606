"""A new configuration while requests run: checked as a whole first, then taken up part by part.

What a running request has begun with stays with it. Instances that are not in the new file drain; those added over the
admin API stay. A few keys need a restart (a listening address cannot be changed under its clients): they are named.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from isochrone.config.build import Configuration
from isochrone.config.driver import Link
from isochrone.config.problems import ConfigError
from isochrone.config.reference import values
from isochrone.gateway.app import GatewaySettings
from isochrone.gateway.tls import towards_clients, towards_instance
from isochrone.nouns.instance import InstanceSpec

if TYPE_CHECKING:
    from isochrone.gateway.service import Service

log = logging.getLogger("isochrone.reload")

Source = Callable[[], Configuration]
"""Reads the file anew. Raises ConfigError."""

RESTART = (
    "listen.host", "listen.port", "listen.tls.", "admin.host", "admin.port", "admin.key", "keys.file", "keys.redis",
    "keys.reload_s", "keys.flush_s", "jwt.", "workers.", "seed", "access_log", "warm_start", "watch_file_s",
    "limits.resolve_s", "limits.log_lines_max", "limits.decisions_max", "limits.prefix_blocks_max",
)  # fmt: skip
"""Keys, or beginnings of keys, whose new values take effect with the next start."""


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload has changed."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    """Instances, by id."""
    settings: list[str]
    """Keys that have other values now."""
    restart: list[str]
    """Keys that have other values in the file and take effect with the next start."""


def check(configuration: Configuration) -> None:
    """What only shows when files are opened. Raises ConfigError."""
    problems = []
    for spec in configuration.instances:
        tls = configuration.links[spec.id].tls
        try:
            if tls is not None:
                towards_instance(tls)
        except OSError as error:  # ssl.SSLError too
            problems.append(f"instance {spec.id}: tls: {error.strerror or error}")
    listen = configuration.file.listen.tls
    try:
        if listen.cert is not None:
            towards_clients(listen.cert, listen.key, listen.client_ca)
    except OSError as error:
        problems.append(f"listen.tls: {error.strerror or error}")
    if problems:
        raise ConfigError(problems)


def apply(service: "Service", new: Configuration) -> Reloaded:
    """Take up a configuration that has been checked. Nothing in here waits, so no request sees half of it."""
    old = service.configuration
    settings, restart = _other_values(service, old, new)
    service.configuration = service.admin_api.configuration = new
    service.gateway.configure(GatewaySettings.of(new))
    if service.tokens is not None and service.gateway.door is not None:
        service.tokens.tenants = service.gateway.door.quotas.tenants
    if old.scrape != new.scrape:
        service.watch.configure(new.scrape)
    if old.settings != new.settings:
        kept = {name: getattr(old.settings, name) for name in ("decisions_max", "prefix_blocks_max")}
        service.fleet.configure(msgspec.structs.replace(new.settings, **kept))
    added, removed, changed = _instances(service, old, new)
    tls = old.file.listen.tls
    if service.tls is not None and tls.cert is not None and tls == new.file.listen.tls:
        service.tls.load_cert_chain(tls.cert, tls.key)  # it may have been renewed in place
    log.info(
        "configuration taken up: %d instances added, %d drain, %d changed, settings: %s",
        len(added), len(removed), len(changed), ", ".join(settings) or "as before",
    )  # fmt: skip
    if service.relays is not None:
        service.relays.reloaded()
    if restart:
        log.warning("these take effect with the next start: %s", ", ".join(restart))
    return Reloaded(added, removed, changed, settings, restart)


def _other_values(service: "Service", old: Configuration, new: Configuration) -> tuple[list[str], list[str]]:
    """Keys with other values: those that take effect now, and those that need a restart."""
    first = RESTART if service.gateway.door is not None else (*RESTART, "tenants")  # a door is not put in later
    before, after = values(old.file), values(new.file)
    other = sorted(name for name in after if after[name] != before.get(name))
    restart = [name for name in other if name.startswith(first)]
    return [name for name in other if name not in restart], restart


def _instances(service: "Service", old: Configuration, new: Configuration) -> tuple[list[str], list[str], list[str]]:
    """Those of the old file against those of the new one."""
    before: dict[str, tuple[InstanceSpec, Link]] = {spec.id: (spec, old.links[spec.id]) for spec in old.instances}
    after = {spec.id: (spec, new.links[spec.id]) for spec in new.instances}
    removed = [instance for instance in before if instance not in after]
    added = [instance for instance in after if instance not in before]
    changed = [instance for instance in after if instance in before and after[instance] != before[instance]]
    for instance in removed:
        service.fleet.leave(instance, drain=True)
    for instance in (*added, *changed):
        service.fleet.join(*after[instance])
    return added, removed, changed


async def reload_when_told(
    reload: Callable[[], Awaitable[Reloaded]], told: asyncio.Event, file: Path, every_s: float | None
) -> None:
    """Reload when `told` is set, and with `every_s` when the file has another content or is another one."""
    seen = _stamp(file)
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(every_s):
                await told.wait()
        now = _stamp(file)
        if not told.is_set() and now == seen:
            continue
        told.clear()
        seen = now
        try:
            await reload()
        except ConfigError as error:
            log.error("the configuration stays as it is: %s", error)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Changes with the file. None: it is not there."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
