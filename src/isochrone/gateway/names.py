"""Names of instances -> addresses, looked up beside the data path.

A request never waits for a lookup, but for the very first one of its instance. An answer that is no longer fresh is
used once more while the next one is asked for in the background; a lookup that fails keeps the last good answer.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

from isochrone.access.patterns import glob
from isochrone.gateway import clock
from isochrone.nouns.instant import Instant

ADDRESSES_MAX = 16
"""Addresses of one name that are tried, in the order of the answer."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


async def lookup(host: str, port: int) -> list[str]:
    """Addresses of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:ADDRESSES_MAX]


def literal(host: str) -> Address | None:
    """The address that a host is, if it is none that has to be looked up (`2130706433` has to be)."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


class Names:
    """The addresses of one instance."""

    def __init__(self, host: str, port: int, fresh_s: float, allow: Sequence[str] | None = None) -> None:
        """`allow`: what an instance that was added over the API may be at; None: anywhere."""
        self._host = host
        self._port = port
        self._fresh_s = fresh_s
        self._allow = allow
        self._known: list[str] = [host] if literal(host) is not None else []
        self._fixed = bool(self._known)
        self._asked_at: Instant = 0
        self._task: asyncio.Task[None] | None = None

    async def addresses(self) -> list[str]:
        """Addresses to try, in this order. Raises OSError where none is known or allowed."""
        if not self._fixed and self._task is None and self._is_stale():
            self._task = asyncio.get_running_loop().create_task(self._ask(), name=f"lookup of {self._host}")
        if not self._known and self._task is not None:
            await asyncio.shield(self._task)
        if not self._known:
            raise OSError(f"the name {self._host!r} has no address")
        if self._allow is None:
            return self._known
        allowed = [address for address in self._known if permitted(self._host, address, self._allow)]
        if not allowed:
            raise OSError(f"no address of {self._host!r} is allowed for instances added over the API")
        return allowed

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    def _is_stale(self) -> bool:
        return not self._known or clock.now() > clock.after(self._asked_at, self._fresh_s)

    async def _ask(self) -> None:
        try:
            found = await lookup(self._host, self._port)
        except OSError:
            found = []
        finally:
            self._asked_at = clock.now()
            self._task = None
        self._known = found or self._known


def named(host: str, allow: Sequence[str]) -> bool:
    """Some pattern matches the host, or there is nothing to match."""
    return not allow or any(glob(entry).fullmatch(host) for entry in allow if "/" not in entry)


def permitted(host: str, address: str, allow: Sequence[str]) -> bool:
    """May an instance of this host, added over the API, be at this address?

    Never where clouds serve credentials to their machines. `allow` holds ranges (`10.0.0.0/8`), one of which may hold
    the address, and patterns, one of which may match the host; empty: any host. A name may be made to point elsewhere
    later, so loopback addresses need a range, or to be asked for as such.
    """
    at = literal(address)
    if at is None or at.is_link_local or at.is_multicast or at.is_unspecified:
        return False
    ranges = [ipaddress.ip_network(entry) for entry in allow if "/" in entry]
    if any(at in one for one in ranges):
        return True
    if not named(host, allow):
        return False
    return not at.is_loopback or literal(host) is not None or host.lower() == "localhost"
