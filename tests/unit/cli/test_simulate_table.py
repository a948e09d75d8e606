"""The tables of `isochrone simulate`, as a narrow terminal shows them."""

import io
from dataclasses import replace

from rich.console import Console

from isochrone.cli.simulate_table import show
from isochrone.simulator.figures import MEANINGS
from isochrone.simulator.sweep import Result

LONG = "production-stack-loadaware+admission"


def result(arm: str, seed: int, goodput: float, served: float = 1.0) -> Result:
    figures: dict[str, float | None] = dict.fromkeys(MEANINGS, 123456.789)
    figures |= {"goodput_ratio": goodput, "served_ratio": served, "ttft_p50_s": None, "ttft_p99_s": 1.0 + seed}
    return Result(arm, seed, 1.0, 2, 10, 5.0, figures, {"done": 10}, 0.0, 0.0, 0, ["said once"])


def shown(found: list[Result], arms: list[str]) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    show(found, arms, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_nothing_is_cut_at_80_columns() -> None:
    arms = ["equal-cost", LONG, "equal-cost without reservation"]
    lines = shown([result(arm, seed, 0.5) for arm in arms for seed in range(3)], arms)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    assert "-put" not in lines[0]
    assert "\nproduction-stack- " in text, "folded at a hyphen"
    assert "\nloadaware+admission " in text
    assert "123457" in text
    assert text.count("said once") == 1


def test_differences_are_taken_in_pairs_by_seed() -> None:
    ours = [result("equal-cost", seed, 0.9 + seed / 100) for seed in range(3)]
    theirs = [result(LONG, seed, 0.8 + seed / 100) for seed in range(3)]
    text = "\n".join(shown([*theirs, *ours], [LONG, "equal-cost"]))
    assert "equal-cost minus each: mean of 3 pairs" in text
    assert "+0.100 ±0.000" in text
    assert "\nproduction-stack-   +0.100" in text, "folded at a hyphen"


def test_latencies_are_compared_only_where_both_serve_nearly_all() -> None:
    ours = [result("equal-cost", seed, 0.9) for seed in range(3)]
    theirs = [replace(result("random", seed, 0.8, served=0.9)) for seed in range(3)]
    row = next(line for line in shown([*ours, *theirs], ["equal-cost", "random"])[::-1] if line.startswith("random"))
    assert row.split()[1:] == ["+0.100", "±0.000", "+0.000", "±0.000", "-", "-"]


def test_one_seed_has_no_differences() -> None:
    assert not any("minus" in line for line in shown([result("a", 0, 0.5), result("b", 0, 0.5)], ["a", "b"]))
