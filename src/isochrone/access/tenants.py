"""On whose behalf requests come, and what each of them may do. Plain data, made from the configuration."""

from collections.abc import Mapping

import msgspec

from isochrone.access.patterns import glob

ANONYMOUS = "anonymous"
"""Tenant of callers without a key."""
DEFAULT = "default"
"""Names the limits of tenants that are not named themselves."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one tenant, all its keys together. None: no limit."""

    name: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens."""
    concurrent_requests: int | None = None
    """Held and running."""
    models: tuple[str, ...] = ()
    """Patterns of the models that it may use; empty: all."""
    priority: int = 0
    """A higher one goes wholly first in the queue."""
    route: str | None = None
    """Route class of its requests where no rule and no header names one."""


class Tenants:
    """The table of tenants. One that is not in it has the limits of `default`, as an account of its own."""

    def __init__(self, tenants: Mapping[str, Tenant] | None = None) -> None:
        self._tenants = dict(tenants or {})
        self._default = self._tenants.get(DEFAULT, Tenant(name=DEFAULT))
        self._patterns = {
            name: tuple(glob(pattern) for pattern in tenant.models) for name, tenant in self._tenants.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._tenants

    def of(self, name: str) -> Tenant:
        """The tenant of this name."""
        tenant = self._tenants.get(name)
        return tenant if tenant is not None else msgspec.structs.replace(self._default, name=name)

    def allows(self, name: str, model: str) -> bool:
        """Whether the tenant may use the model."""
        patterns = self._patterns.get(name)
        if patterns is None:
            patterns = self._patterns.get(DEFAULT, ())
        return not patterns or any(pattern.fullmatch(model) for pattern in patterns)
