"""Policies: one file each. A policy prices the candidates; the cheapest is picked, ties by deeper hit, then by chance.

Third parties register a class in the entry-point group `isochrone.policies`; `cli` loads those and hands them to
`register`, since the core looks nothing up by itself. `peers/` holds what other gateways do, to be compared with.

Every policy that does not hold requests back is also there inside our admission, under its name plus `+admission`.
"""

from collections.abc import Callable

from isochrone.nouns.chance import Chance
from isochrone.scheduling.policies.admitted import SUFFIX, Admitted
from isochrone.scheduling.policies.base import Policy, Priced
from isochrone.scheduling.policies.equal_cost import EqualCost
from isochrone.scheduling.policies.estimated_time import EstimatedTime
from isochrone.scheduling.policies.least_request import LeastRequest
from isochrone.scheduling.policies.peers import PEERS
from isochrone.scheduling.policies.power_of_two import PowerOfTwo
from isochrone.scheduling.policies.random_choice import RandomChoice
from isochrone.scheduling.policies.round_robin import RoundRobin
from isochrone.scheduling.policies.session_hash import SessionHash

Factory = Callable[[Chance], Policy]

_FACTORIES: dict[str, Factory] = {
    policy.name: policy
    for policy in (EqualCost, EstimatedTime, LeastRequest, PowerOfTwo, RandomChoice, RoundRobin, SessionHash, *PEERS)
}
_UNLISTED: set[str] = set()


def names(peers: bool = True) -> list[str]:
    """Every policy, without the `+admission` variants: ours and third parties', then those of other gateways."""
    others = sorted(peer.name for peer in PEERS)
    return sorted(_FACTORIES.keys() - set(others) - _UNLISTED) + (others if peers else [])


def exists(name: str) -> bool:
    """Whether `make` knows the name: a policy, or one that holds nothing by itself plus `+admission`."""
    base = name.removesuffix(SUFFIX)
    return base in _FACTORIES and (base == name or not getattr(_FACTORIES[base], "holds", False))


def register(name: str, factory: Factory, listed: bool = True) -> None:
    """Make a policy of a third party available under its name. Not listed: for one check, nobody else's to choose."""
    _FACTORIES[name] = factory
    if not listed:
        _UNLISTED.add(name)


def make(name: str, chance: Chance) -> Policy:
    """A fresh policy. Raises KeyError for an unknown name (checked at the edge, with the nearest name)."""
    if not exists(name):
        raise KeyError(name)
    policy = _FACTORIES[name.removesuffix(SUFFIX)](chance)
    return Admitted(policy) if name.endswith(SUFFIX) else policy


__all__ = ["Factory", "Policy", "Priced", "exists", "make", "names", "register"]
