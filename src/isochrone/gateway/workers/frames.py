"""What relays and brain say to each other: the events and commands of the door, and a few words about themselves."""

import msgspec

from isochrone.config.driver import Link
from isochrone.nouns.commands import Abort, Dispatch, Fail
from isochrone.nouns.events import Accepted, Adopted, Arrived, ClientLeft, Ended, FirstToken, Progress, Stalled
from isochrone.nouns.instance import InstanceSpec

Rows = dict[str, list[tuple[tuple[str, ...], float]]]
"""Metric name -> labels and value of each row."""


class Member(msgspec.Struct, frozen=True, tag=True):
    """An instance and how to reach it; with its secret, so this never leaves the machine."""

    spec: InstanceSpec
    """With its weight of the moment."""
    link: Link
    draining: bool = False
    """An operator has told it to drain, and to stay listed."""
    gives_ids: bool = False
    """Its engine can be asked for token ids."""

    @property
    def by_operator(self) -> bool:
        """It was added over the admin API: no file names it."""
        return self.link.allow is not None


# From a relay.


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First on every connection."""

    relay: int
    pid: int
    members: tuple[Member, ...] = ()
    """Instances that it was told of by another brain, before this one; empty for a fresh relay."""


class Announced(msgspec.Struct, frozen=True, tag=True):
    """All attempts that the relay has under way have been told as Adopted; what follows is news."""


class TurnedAway(msgspec.Struct, frozen=True, tag=True):
    """A request was refused at the relay: for the access log and the usage table."""

    request: str
    path: str
    tenant: str
    key: str
    code: str
    status: int


class Report(msgspec.Struct, frozen=True, tag=True):
    """How the relay is, every REPORT_S."""

    rows: Rows
    """Metrics of its process; counters since its start."""
    draining: bool
    open_requests: int
    """Requests that it keeps in mind for another brain."""
    cpu_s: float
    """Processor time used, user and system."""
    resident_bytes: int


FromRelay = (
    Hello | Announced | TurnedAway | Report
    | Arrived | Adopted | Accepted | FirstToken | Progress | Stalled | Ended | ClientLeft
)  # fmt: skip

# From the brain.


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Answer to Hello."""

    epoch: int
    """Counts brains: part of the numbers of its attempts."""
    text: str | None
    """The configuration file in force; None: there is no file."""


class Reloaded(msgspec.Struct, frozen=True, tag=True):
    """The configuration file has been taken up anew."""

    text: str


class Joined(msgspec.Struct, frozen=True, tag=True):
    """An instance, new or with other values."""

    member: Member


class Left(msgspec.Struct, frozen=True, tag=True):
    """Nothing more is sent to this instance."""

    instance: str


class Serving(msgspec.Struct, frozen=True, tag=True):
    """What clients can be served with."""

    models: dict[str, int | None]
    """Model -> longest context in tokens."""
    ready: bool
    """Some instance takes requests."""


class Granted(msgspec.Struct, frozen=True, tag=True):
    """Header lines for the answer: what the tenant has left. Comes before the Dispatch."""

    request: str
    lines: bytes


class Over(msgspec.Struct, frozen=True, tag=True):
    """The request has ended for the cluster, and nothing more will come for it."""

    request: str


FromBrain = Welcome | Reloaded | Joined | Left | Serving | Granted | Over | Dispatch | Fail | Abort
