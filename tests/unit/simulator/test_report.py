"""The page of plots: well formed, self-contained, with the figures that it claims."""

import re
from xml.etree import ElementTree

from isochrone.simulator.figures import MEANINGS
from isochrone.simulator.report import page
from isochrone.simulator.sweep import Result


def result(arm: str, seed: int, rate: float, goodput: float) -> Result:
    figures: dict[str, float | None] = dict.fromkeys(MEANINGS, 1.0) | {"goodput_ratio": goodput, "tpot_p99_s": None}
    made = Result(arm, seed, rate, 2, 10, 5.0 * rate, figures, {"done": 10}, 0.0, 0.0, 0, ["a <note>"])
    if seed == 0:
        made.ttft_cdf, made.e2e_cdf = [0.01, 0.1, 1.0], [0.1, 1.0, 10.0]
        made.timeline = {
            "at_s": [0.0, 1.0],
            "held": [0, 3],
            "running": {"one": [1, 2]},
            "kv_usage": {"one": [0.1, 0.2]},
        }
    return made


ARMS = ["equal-cost", "equal-cost without prefix"]
FOUND = [
    result(arm, seed, rate, 0.9 - 0.1 * number)
    for number, arm in enumerate(ARMS)
    for rate in (1.0, 2.0)
    for seed in (0, 1)
]
PAGE = page(FOUND, ARMS, {"workload": "a & b", "requests": None, "slow": [], "seeds": 2})


def test_each_drawing_is_well_formed_and_nothing_is_loaded() -> None:
    drawings = re.findall(r"<figure>.*?</figure>", PAGE, re.DOTALL)
    assert len(drawings) == 4 + 2 * (4 + 2 + 2 * 3)
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    assert not re.search(r"https?:|src=|<link|<script|@import|url\(", PAGE)


def test_what_was_asked_for_stands_on_top_and_what_was_not_is_left_out() -> None:
    top = PAGE[: PAGE.index("<h2>")]
    assert "a &amp; b" in top
    assert "a &lt;note&gt;" in top
    assert "requests" not in top
    assert "slow" not in top


def test_a_part_is_worth_what_its_absence_costs() -> None:
    plot = next(one for one in PAGE.split("<figure>") if one.count("Goodput: equal-cost minus each"))
    assert "0.1 ± " in plot
    assert "equal-cost without prefix" in plot


def test_goodput_stands_against_the_rate() -> None:
    plot = next(one for one in PAGE.split("<figure>") if "Goodput against offered requests/s" in one)
    assert plot.count("<polyline") == 2
    assert ">5<" in plot
    assert ">10<" in plot


def test_of_many_policies_each_line_looks_different() -> None:
    many = [f"policy-{number}" for number in range(26)]
    text = page([result(arm, 0, rate, 0.5) for arm in many for rate in (1.0, 2.0)], many, {})
    plot = next(one for one in text.split("<figure>") if "Goodput against" in one)
    looks = re.findall(r'<polyline fill="none" stroke="(#\w+)" stroke-width="1.6" stroke-dasharray="([\d ]*)"', plot)
    assert len(set(looks)) == 26
    assert all(f"</svg>{arm}</span>" in plot for arm in many)
