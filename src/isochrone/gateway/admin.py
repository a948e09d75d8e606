"""The admin API: instances, policy, decisions, settings, metrics. On a port of its own, for operators alone.

It listens on loopback unless told otherwise, and asks for `admin.key` where one is configured (`admin_guard` looks at
both, and keeps web pages out).
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from isochrone.access.paths import Paths
from isochrone.adapters.keystore import StoreError
from isochrone.cluster.cluster import Cluster
from isochrone.config.build import Configuration, instance_spec, link
from isochrone.config.driver import Link
from isochrone.config.fields import Group
from isochrone.config.problems import ConfigError, nearest
from isochrone.config.reference import settings, values
from isochrone.config.schema import InstanceEntry
from isochrone.gateway import clock, openapi
from isochrone.gateway.admin_guard import AdminError, Endpoint, body_of, check_target, guarded, is_loopback, json
from isochrone.gateway.decisions import as_json, brief
from isochrone.gateway.doorkeeper import Doorkeeper
from isochrone.gateway.keywatch import KeyWatch
from isochrone.gateway.metrics import CONTENT_TYPE, Metrics
from isochrone.gateway.reload import Reloaded
from isochrone.gateway.usage import UsageQuery, standing
from isochrone.nouns.instance import InstanceSpec
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies

OPEN = ("/health", "/ready")
"""Calls that need no key: they tell a stranger nothing."""
DECISIONS_SHOWN = 100
"""Records in /admin/decisions where `limit` does not say."""


class Fleet(Protocol):
    """What changes instances and settings: `isochrone.gateway.fleet.Fleet`."""

    cluster: Cluster

    @property
    def draining(self) -> bool: ...

    def join(self, spec: InstanceSpec, link: Link) -> None: ...

    def leave(self, instance: str, drain: bool) -> None: ...

    def drain(self, instance: str) -> None: ...

    def undrain(self, instance: str) -> None: ...

    def weigh(self, instance: str, weight: float) -> None: ...

    def configure(self, settings: Settings) -> None: ...


class WeightBody(Group):
    """POST .../weight."""

    weight: float = Field(ge=0, le=1000)


class PolicyBody(Group):
    """PUT /admin/policy. What is not named stays as it is."""

    policy: str | None = None
    shadow: str | None = None
    hold: bool | None = None


class Admin:
    """The endpoints. One method each, in the order of `routes`."""

    def __init__(
        self,
        fleet: Fleet,
        configuration: Configuration,
        metrics: Metrics,
        door: Doorkeeper | None = None,
        keys: KeyWatch | None = None,
        reload: Callable[[], Awaitable[Reloaded]] | None = None,
    ) -> None:
        self._fleet = fleet
        self._cluster = fleet.cluster
        self.configuration = configuration
        self._metrics = metrics
        self._door = door
        self._keys = keys
        self._reload = reload

    def app(self) -> Starlette:
        """The web application."""
        loopback, key = is_loopback(self.configuration.file.admin.host), self.configuration.admin_key
        return Starlette(
            routes=[
                Route(path, guarded(endpoint, loopback, None if path in OPEN else key), methods=[method])
                for method, path, endpoint in self.routes()
            ],
            exception_handlers={404: _no_such_call, 405: _no_such_call},
        )

    def routes(self) -> list[tuple[str, str, Endpoint]]:
        """Method, path and endpoint of every call."""
        one = "/admin/instances/{instance}"
        return [
            ("GET", "/metrics", self.metrics),
            ("GET", "/health", self.health),
            ("GET", "/ready", self.ready),
            ("GET", "/openapi.json", self.openapi),
            ("GET", "/admin/instances", self.instances),
            ("POST", "/admin/instances", self.add_instance),
            ("GET", one, self.instance),
            ("DELETE", one, self.remove_instance),
            ("POST", one + "/drain", self.drain_instance),
            ("POST", one + "/undrain", self.undrain_instance),
            ("POST", one + "/weight", self.weigh_instance),
            ("GET", "/admin/queues", self.queues),
            ("GET", "/admin/policy", self.policy),
            ("PUT", "/admin/policy", self.set_policy),
            ("GET", "/admin/decisions", self.decisions),
            ("GET", "/admin/decisions/{request_id:path}", self.decision),
            ("GET", "/admin/settings", self.settings),
            ("POST", "/admin/reload", self.reload),
            ("GET", "/admin/tenants", self.tenants),
            ("GET", "/admin/usage", self.usage),
        ]

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        return Response(await self._metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def health(self, request: Request) -> Response:
        """200 while the process works at all."""
        return json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 when requests can be served, 503 when no instance takes any, or while draining."""
        ready = self._cluster.can_serve() and not self._fleet.draining
        return json({"ready": ready, "draining": self._fleet.draining}, 200 if ready else 503)

    async def openapi(self, request: Request) -> Response:
        """What the data port serves, as an OpenAPI document."""
        return json(openapi.document(Paths(self.configuration.paths)))

    async def instances(self, request: Request) -> Response:
        """Every instance with all that is known of it."""
        return json({"instances": self._cluster.instances()})

    async def instance(self, request: Request) -> Response:
        """One instance."""
        name = self._named(request)
        return json(next(view for view in self._cluster.instances() if view.id == name))

    async def add_instance(self, request: Request) -> Response:
        """Add an instance; the body is an entry of the configuration's `instances`."""
        entry = await body_of(request, InstanceEntry)
        allow = self.configuration.file.admin.allow
        await check_target(urlsplit(entry.url).hostname or "", allow)
        if entry.credentials is not None or entry.tls is not None:
            raise AdminError(
                403,
                "only_in_file",
                "credentials and tls name files and variables of the gateway's machine; "
                "set them in the configuration file.",
                "credentials" if entry.credentials is not None else "tls",
            )
        spec = instance_spec(entry)
        if spec.id in self._known():
            raise AdminError(409, "instance_exists", f"id: {spec.id!r} is there already; remove it first.", "id")
        self._fleet.join(spec, replace(link(entry, os.environ), allow=allow))
        return json({"added": spec.id}, 201)

    async def remove_instance(self, request: Request) -> Response:
        """Remove an instance: it takes nothing new and goes when it is idle; `?drain=false`: at once."""
        name = self._named(request)
        drain = request.query_params.get("drain", "true")
        if drain not in ("true", "false"):
            raise AdminError(400, "bad_value", f"drain = {drain[:60]!r}: expected true or false", "drain")
        self._fleet.leave(name, drain == "true")
        return json({"removed": name, "drain": drain == "true"}, 202)

    async def drain_instance(self, request: Request) -> Response:
        """Let it finish what it has; it stays listed and takes nothing new until undrained."""
        name = self._named(request)
        self._fleet.drain(name)
        return json({"draining": name}, 202)

    async def undrain_instance(self, request: Request) -> Response:
        """Let it take requests again."""
        name = self._named(request)
        self._fleet.undrain(name)
        return json({"undrained": name}, 202)

    async def weigh_instance(self, request: Request) -> Response:
        """Set its share of work relative to its peers."""
        name = self._named(request)
        body = await body_of(request, WeightBody)
        self._fleet.weigh(name, body.weight)
        return json({"instance": name, "weight": body.weight})

    async def queues(self, request: Request) -> Response:
        """Every model's queue."""
        return json({"queues": self._cluster.queues()})

    async def policy(self, request: Request) -> Response:
        """How requests are placed, and what else there is."""
        now = self._cluster.settings
        return json({"policy": now.policy, "shadow": now.shadow, "hold": now.hold, "policies": policies.names()})

    async def set_policy(self, request: Request) -> Response:
        """Change the policy, the shadow (null: none) or late binding, from the next decision on."""
        body = await body_of(request, PolicyBody)
        changes: dict[str, Any] = {name: getattr(body, name) for name in body.model_fields_set}
        for name in ("policy", "shadow"):
            chosen = changes.get(name)
            if chosen is not None and not policies.exists(chosen):
                hint = nearest(chosen, policies.names())
                raise AdminError(400, "unknown_policy", f"{name} = {chosen[:60]!r}: no such policy; {hint}", name)
        for name in ("policy", "hold"):
            if name in changes and changes[name] is None:
                raise AdminError(400, "bad_value", f"{name}: must not be null", name)
        self._fleet.configure(msgspec.structs.replace(self._cluster.settings, **changes))
        return await self.policy(request)

    async def decisions(self, request: Request) -> Response:
        """The latest records in brief, newest first; `?limit=`."""
        most = self._cluster.settings.decisions_max
        text = request.query_params.get("limit", str(min(DECISIONS_SHOWN, most)))
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
            raise AdminError(400, "bad_value", f"limit = {text[:60]!r}: expected a number from 1 to {most}", "limit")
        now = clock.now()
        return json({"decisions": [brief(decision, now) for decision in self._cluster.decisions(int(text[:9]))]})

    async def decision(self, request: Request) -> Response:
        """The whole record of one request: candidates, their terms in seconds, winner, forecast, outcome."""
        name = request.path_params["request_id"]
        decision = self._cluster.decision(name)
        if decision is None:
            most = self._cluster.settings.decisions_max
            raise AdminError(
                404, "unknown_request", f"No record of {name[:200]!r}; the last {most} requests are kept.", "request_id"
            )
        return json(as_json(decision, self._cluster.candidates(decision), clock.now()))

    async def settings(self, request: Request) -> Response:
        """Every setting with its unit, default and value."""
        now = values(self.configuration.file)
        core = self._cluster.settings
        now.update(policy=core.policy, shadow=core.shadow, hold=core.hold)
        return json(
            {
                "settings": [
                    {
                        "name": one.name,
                        "unit": one.unit,
                        "default": one.default,
                        "value": now[one.name],
                        "meaning": one.meaning,
                    }
                    for one in settings()
                    if one.name in now
                ]
            }
        )

    async def reload(self, request: Request) -> Response:
        """Read the configuration file anew and take it up, or say what is wrong with it and change nothing."""
        if self._reload is None:
            raise AdminError(409, "no_file", "The gateway was started without a configuration file.")
        try:
            done = await self._reload()
        except ConfigError as error:
            raise AdminError(400, "bad_configuration", "; ".join(error.problems)) from None
        return json(done)

    async def tenants(self, request: Request) -> Response:
        """What each tenant that has asked anything may use, and has left."""
        if self._door is None:
            return json({"tenants": []})
        now = clock.now()
        return json({"tenants": [standing(account, now) for account in self._door.quotas.accounts.values()]})

    async def usage(self, request: Request) -> Response:
        """Usage by day, tenant, key and model; `?first=2026-01-31&last=...&by=key,model`."""
        if self._keys is None:
            return json({"usage": []})
        try:
            query = UsageQuery.read(request.query_params, clock.wall_s())
            rows = await self._keys.used(query.first_day, query.last_day)
        except ValueError as error:
            raise AdminError(400, "bad_value", str(error)) from None
        except StoreError as error:
            raise AdminError(503, "key_store_failed", f"The store of keys and usage: {error}.") from None
        return json({"usage": query.shown(rows)})

    def _known(self) -> list[str]:
        return [view.id for view in self._cluster.instances()]

    def _named(self, request: Request) -> str:
        """The instance that the path names."""
        name: str = request.path_params["instance"]
        known = self._known()
        if name not in known:
            hint = nearest(name, known) if known else "there are none"
            raise AdminError(404, "unknown_instance", f"No instance {name[:200]!r}; {hint}", "instance")
        return name


async def _no_such_call(request: Request, error: Exception) -> Response:
    """A path or method that is not in the table."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    call = f"{request.method} {request.url.path}"[:200]
    return AdminError(status, "unknown_call", f"There is no {call!r} here; see docs/reference/admin-api.md.").response()
