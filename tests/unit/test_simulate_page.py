"""docs/guides/simulate.md names what there is: generators, faults, options."""

import re
from pathlib import Path

from isochrone.cli import replay, simulate
from isochrone.simulator.faults import FAULTS
from isochrone.simulator.generators import GENERATORS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "guides" / "simulate.md").read_text(encoding="utf-8")


def test_every_generator_and_fault_is_there() -> None:
    assert [name for name in (*GENERATORS, *FAULTS) if f"`{name}`" not in PAGE] == []


def test_every_option_that_it_names_exists() -> None:
    parameters = simulate.command.params + replay.command.params
    known = {option for parameter in parameters for option in parameter.opts} | {"--help"}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known
