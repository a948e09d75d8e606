"""Instances come, go and change: the data path, the loops that ask them, and the cluster hear of it together."""

import msgspec

from isochrone.cluster import Cluster
from isochrone.config.driver import Link
from isochrone.gateway.app import Gateway
from isochrone.gateway.watch import Watch
from isochrone.nouns.events import Configured, Found, Weighed, Withdrawn
from isochrone.nouns.instance import InstanceSpec
from isochrone.nouns.settings import Settings


class Fleet:
    """What the admin API and the start of the process call. Instance ids are those that `join` was given."""

    def __init__(self, gateway: Gateway, watch: Watch) -> None:
        self.cluster: Cluster = gateway.cluster
        self._gateway = gateway
        self._watch = watch
        self._specs: dict[str, InstanceSpec] = {}
        """As they are now, changed weights included: an undrained instance comes back as it was."""

    @property
    def draining(self) -> bool:
        """The gateway is about to end."""
        return self._gateway.draining

    def join(self, spec: InstanceSpec, link: Link) -> None:
        """A new instance. OSError where its TLS files cannot be read."""
        self._gateway.add_instance(spec, link)
        self._specs[spec.id] = spec
        self._watch.add(spec)

    def leave(self, instance: str, drain: bool) -> None:
        """Take nothing new; go when idle, or at once."""
        self._specs.pop(instance, None)
        self._watch.remove(instance)
        self._gateway.remove_instance(instance, drain)

    def drain(self, instance: str) -> None:
        """Take nothing new, and stay listed."""
        self._gateway.submit(Withdrawn(instance, drain=True, keep=True))

    def undrain(self, instance: str) -> None:
        """Take requests again, unless it is about to leave."""
        spec = self._specs.get(instance)
        if spec is not None:
            self._gateway.submit(Found(spec))

    def weigh(self, instance: str, weight: float) -> None:
        """A new share of work."""
        spec = self._specs.get(instance)
        if spec is not None:
            self._specs[instance] = msgspec.structs.replace(spec, weight=weight)
        self._gateway.submit(Weighed(instance, weight))

    def configure(self, settings: Settings) -> None:
        """New settings, from the next decision on."""
        self._gateway.submit(Configured(settings))
