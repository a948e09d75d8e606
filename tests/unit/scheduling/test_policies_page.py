"""docs/reference/policies.md names every policy, and nothing that is none."""

import random
import re
from pathlib import Path

from isochrone.scheduling import policies

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "policies.md").read_text(encoding="utf-8")


def test_every_policy_has_a_row() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, re.MULTILINE)
    assert set(policies.names()) <= set(rows)
    assert set(rows) <= set(policies.names())


def test_policies_that_scrape_more_often_are_named() -> None:
    often = [name for name in policies.names() if policies.make(name, random.Random(0)).scrape_interval_s]
    bullet = next(part for part in PAGE.split("\n- ") if "scrape_interval_s" in part).partition("\n\n")[0]
    assert often == re.findall(r"`([a-z-]+)`", bullet)
