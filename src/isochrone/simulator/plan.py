"""What a run is made of beside its workload and seed, and what comes out of it."""

from dataclasses import dataclass, field

from isochrone.nouns.settings import Settings
from isochrone.simulator.faults import Fault
from isochrone.simulator.fleet import Fleet
from isochrone.simulator.requests import Objective
from isochrone.simulator.tally import Tally
from isochrone.simulator.timeline import Timeline
from isochrone.simulator.told_steps import ToldSteps


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a run but the workload and the seed."""

    settings: Settings
    fleet: Fleet
    objective: Objective = field(default_factory=Objective)
    told: str = "nothing"
    faults: tuple[Fault, ...] = ()
    resumable: bool = True
    """The relay can continue a stream elsewhere."""
    samples: int = 0
    """Points of the timelines of load and memory; 0: none are kept."""
    gateways: int = 1
    """Clusters in front of the same instances."""
    sticky: bool = False
    """A session's requests all come to one gateway."""
    told_steps: ToldSteps | None = None
    """The cluster is told step times; None: it learns them."""
    link_gbps: float = 400.0
    """Gigabits a second of each instance's link, where prompts and answers are computed in different pools."""


@dataclass(slots=True)
class Run:
    """What came out."""

    tally: Tally
    virtual_s: float
    preemptions: int
    hit_tokens: int
    query_tokens: int
    timeline: Timeline | None = None
    notes: list[str] = field(default_factory=list)
