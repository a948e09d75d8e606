"""Instances come, go and change: the data path, the loops that ask them, and the cluster hear of it together."""

from typing import TYPE_CHECKING

import msgspec

from isochrone.cluster import Cluster
from isochrone.config.driver import Link
from isochrone.gateway.app import Gateway
from isochrone.gateway.watch import Watch
from isochrone.gateway.workers.frames import Member
from isochrone.nouns.events import Configured, Found, Weighed, Withdrawn
from isochrone.nouns.instance import InstanceSpec
from isochrone.nouns.settings import Settings

if TYPE_CHECKING:
    from isochrone.gateway.workers.sessions import Sessions


class Fleet:
    """What the admin API and the start of the process call. Instance ids are those that `join` was given."""

    def __init__(self, cluster: Cluster, gateway: Gateway, watch: Watch) -> None:
        self.cluster = cluster
        self.relays: Sessions | None = None
        """Where relay processes carry the bytes: they hear of instances too."""
        self._gateway = gateway
        self._watch = watch
        self._links: dict[str, Link] = {}
        self._draining: set[str] = set()
        """Told by an operator to drain, and to stay listed."""
        self._specs: dict[str, InstanceSpec] = {}
        """As they are now, changed weights included: an undrained instance comes back as it was."""

    @property
    def draining(self) -> bool:
        """The gateway is about to end."""
        return self._gateway.draining or (self.relays is not None and self.relays.draining)

    def join(self, spec: InstanceSpec, link: Link) -> None:
        """A new instance. OSError where its TLS files cannot be read."""
        self._gateway.add_instance(spec, link)
        self._specs[spec.id], self._links[spec.id] = spec, link
        self._draining.discard(spec.id)
        self._watch.add(spec)
        self._tell(spec.id)

    def leave(self, instance: str, drain: bool) -> None:
        """Take nothing new; go when idle, or at once."""
        self._specs.pop(instance, None)
        self._links.pop(instance, None)
        self._draining.discard(instance)
        self._watch.remove(instance)
        if self.relays is not None:
            self.relays.left(instance)
        self._gateway.remove_instance(instance, drain)

    def drain(self, instance: str) -> None:
        """Take nothing new, and stay listed."""
        self._gateway.submit(Withdrawn(instance, drain=True, keep=True))
        self._draining.add(instance)
        self._tell(instance)

    def undrain(self, instance: str) -> None:
        """Take requests again, unless it is about to leave."""
        spec = self._specs.get(instance)
        if spec is not None:
            self._gateway.submit(Found(spec))
            self._draining.discard(instance)
            self._tell(instance)

    def weigh(self, instance: str, weight: float) -> None:
        """A new share of work."""
        spec = self._specs.get(instance)
        if spec is not None:
            self._specs[instance] = msgspec.structs.replace(spec, weight=weight)
        self._gateway.submit(Weighed(instance, weight))
        self._tell(instance)

    def configure(self, settings: Settings) -> None:
        """New settings, from the next decision on."""
        self._gateway.submit(Configured(settings))

    def _tell(self, instance: str) -> None:
        """Relays hear of an instance as it is now."""
        spec = self._specs.get(instance)
        if self.relays is not None and spec is not None:
            gives_ids = self._gateway.pools[instance].gives_ids
            self.relays.joined(Member(spec, self._links[instance], instance in self._draining, gives_ids))

    def take_over(self, member: Member) -> None:
        """What operators have said of an instance, as a relay knows it from a process that was here before this one.

        One that no file names comes back. One that the file no longer names stays away: what runs there ends as it can.
        """
        spec, instance = member.spec, member.spec.id
        if instance not in self._specs:
            if not member.by_operator:
                return
            self.join(spec, member.link)
        pool = self._gateway.pools[instance]
        pool.gives_ids = pool.gives_ids or member.gives_ids
        if self._specs[instance].weight != spec.weight:
            self.weigh(instance, spec.weight)
        if member.draining and instance not in self._draining:
            self.drain(instance)
