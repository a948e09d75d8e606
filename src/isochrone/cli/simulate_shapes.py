"""Other shapes of a simulated cluster: several gateways, engines of many ranks, pools for prompts and answers.

`shape_options` gives a command these options and hands it one `shape`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from isochrone.simulator.experts import Experts, parse
from isochrone.simulator.fleet import Fleet, fleet, in_pools
from isochrone.simulator.gateways import GATEWAYS_MAX
from isochrone.simulator.workload import BadWorkload

RANKS_MAX = 1024
"""Data-parallel ranks of one engine."""
OPTIONS = (
    click.option("--gateways", default=1, show_default=True, type=click.IntRange(1, GATEWAYS_MAX),
                 help="Clusters that share the instances and know of each other only by scrapes."),
    click.option("--sticky", is_flag=True, help="A session's requests all come to one gateway; else each to any."),
    click.option("--ranks", default=1, show_default=True, type=click.IntRange(1, RANKS_MAX), metavar="N",
                 help="Every N instances in a row are the data-parallel ranks of one engine: their steps begin "
                      "together and take as long as the slowest one's."),
    click.option("--experts", metavar="N,top=,devices=,...",
                 help="The model is a mixture of N experts that are asked unevenly; 256: as DeepSeek-V3. Steps take "
                      "1 + share * (busiest device's load / mean - 1) times as long. Also share=, exponent=LOW-HIGH, "
                      "seed=."),
    click.option("--pd", metavar="P:D",
                 help="The first P instances compute prompts only, the other D answers; KV goes over their links."),
    click.option("--link-gbps", default=400.0, show_default=True, type=click.FloatRange(min=0, min_open=True),
                 help="With --pd: gigabits a second of each instance's link."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """What the options ask for."""

    gateways: int = 1
    sticky: bool = False
    ranks: int = 1
    experts: Experts | None = None
    pools: tuple[int, int] | None = None
    """Instances for prompts and for answers; None: all do both."""
    link_gbps: float = 400.0

    def instances(self, given: str | None) -> str | None:
        """What --instances comes to: pools have a size of their own."""
        return given if given is not None or self.pools is None else str(sum(self.pools))

    def fleet(
        self, profiles: Sequence[tuple[str, int]], slow: Mapping[int, float], changes: Mapping[str, int]
    ) -> Fleet:  # fmt: skip
        """The instances."""
        made = fleet(profiles, slow, changes, self.ranks, self.experts)
        if self.pools is None:
            return made
        if sum(self.pools) != len(made.members):
            raise click.BadParameter(
                f"{self.pools[0]}:{self.pools[1]} are not the {len(made.members)} instances that there are",
                param_hint="--pd",
            )
        return in_pools(made, self.pools[0])

    def about(self) -> dict[str, object]:
        """For the JSON."""
        return {
            "gateways": self.gateways,
            "sticky": self.sticky,
            "ranks": self.ranks,
            "experts": asdict(self.experts) if self.experts is not None else None,
            "pd": list(self.pools) if self.pools is not None else None,
            "link_gbps": self.link_gbps if self.pools is not None else None,
        }


def shape_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options, and one argument for all of them."""

    @functools.wraps(command)
    def shaped(
        gateways: int, sticky: bool, ranks: int, experts: str | None, pd: str | None, link_gbps: float, **others: object
    ) -> None:
        shape = Shape(gateways, sticky, ranks, parse_experts(experts), parse_pools(pd), link_gbps)
        command(shape=shape, **others)

    for option in reversed(OPTIONS):
        shaped = option(shaped)
    return shaped


def parse_experts(text: str | None) -> Experts | None:
    """Words of --experts."""
    if text is None:
        return None
    try:
        return parse(text)
    except BadWorkload as error:
        raise click.BadParameter(str(error), param_hint="--experts") from None


def parse_pools(text: str | None) -> tuple[int, int] | None:
    """P:D."""
    if text is None:
        return None
    prefill, colon, decode = text.partition(":")
    if not (colon and prefill.isdecimal() and decode.isdecimal() and int(prefill) and int(decode)):
        raise click.BadParameter(f"{text!r} is not P:D, two numbers of instances from 1 up", param_hint="--pd")
    return int(prefill), int(decode)
