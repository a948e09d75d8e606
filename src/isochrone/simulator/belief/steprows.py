"""Rows of the public collection of step times, `step_times.csv`, sorted into groups that one fit may hold for."""

import csv
from dataclasses import dataclass, field

import numpy as np

from isochrone.simulator.belief.stepfit import Steps

FILE = "step_times.csv"
DISTRUSTED_BATCH = 64
"""Decode rows of this batch in the Splitwise measurements: they cover few output lengths, say the collectors."""


@dataclass(frozen=True, slots=True)
class Key:
    """What one fit may hold for."""

    kind: str
    """`measured_step`, `composed_ops`, `fit`: single steps. `measured_serving`: mean gaps of whole servers."""
    gpu: str
    model: str
    precision: str
    tp: str
    engine: str
    layout: str
    """Data and expert parallelism of a mixture of experts, as noted in the row."""

    def __str__(self) -> str:
        parts = [self.gpu, self.model.rpartition("/")[2], f"TP{self.tp}", self.precision, self.engine, self.layout]
        return " ".join(part for part in parts if part)


@dataclass(slots=True)
class Group:
    """Columns of one group, in the file's order."""

    rows: list[tuple[float, float, float, float, float, float, float]] = field(default_factory=list)
    """(weight of the second kind, T of the first, T of the second, K, A, seconds, ordinal within its phase)"""
    _ordinals: dict[str, int] = field(default_factory=dict)

    def add(self, phase: str, second: float, tokens: tuple[float, float], kv: float, pairs: float, s: float) -> None:
        ordinal = self._ordinals[phase] = self._ordinals.get(phase, 0) + 1
        self.rows.append((second, tokens[0], tokens[1], kv, pairs, s, float(ordinal)))

    def halves(self) -> tuple[Steps, Steps]:
        """Odd and even rows, counted within each phase: prefill and decode rows alternate in part of the file."""
        odd = np.array([row[6] for row in self.rows]) % 2 == 1
        whole = self.whole()
        return whole.take(odd), whole.take(~odd)

    def whole(self) -> Steps:
        """All rows."""
        columns = np.array(self.rows, dtype=float)
        weights = np.stack([1 - columns[:, 0], columns[:, 0]], axis=1)
        return Steps(weights, columns[:, 1:3], columns[:, 3], columns[:, 4], columns[:, 5])


def read_groups(path: str) -> tuple[dict[Key, Group], int]:
    """The groups in the file's order, and how many rows were left out because their collectors distrust them."""
    groups: dict[Key, Group] = {}
    left_out = 0
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if _distrusted(row):
                left_out += 1
                continue
            group = groups.setdefault(_key(row), Group())
            if row["kind"] == "measured_serving":
                _add_serving(group, row)
            else:
                _add_step(group, row)
    return groups, left_out


def _distrusted(row: dict[str, str]) -> bool:
    return row["kind"] == "measured_step" and row["phase"] == "decode" and int(row["batch"]) == DISTRUSTED_BATCH


def _key(row: dict[str, str]) -> Key:
    engine = row["engine"].removesuffix(" nan")
    precision = row["precision"] if row["precision"] != "nan" else ""
    return Key(row["kind"], row["gpu"], row["model"], precision, row["tp"], engine, _layout(row))


def _layout(row: dict[str, str]) -> str:
    """Empty for plain tensor parallelism."""
    noted = row["note"].partition(";")[0]
    if row["kind"] != "measured_serving" or not noted.startswith("dp="):
        return ""
    parts = dict(part.split("=") for part in noted.split())
    plain = parts["dp"] in ("nan", "1.0") and parts["ep"] == "1.0" and parts["moe_tp"] in ("1.0", f"{row['tp']}.0")
    return "" if plain else noted


def _add_step(group: Group, row: dict[str, str]) -> None:
    batch, seconds = float(row["batch"]), float(row["step_ms"]) / 1e3
    if row["phase"] == "prefill":
        prompt = float(row["prompt_tokens"])
        tokens = batch * prompt
        group.add("prefill", 0.0, (tokens, tokens), 0.0, batch * prompt * prompt / 2, seconds)
    else:
        group.add("decode", 0.0, (batch, batch), batch * float(row["context_tokens"]), 0.0, seconds)


def _add_serving(group: Group, row: dict[str, str]) -> None:
    """Mean gap of a server with a fixed number of requests in flight.

    Each of `batch` requests needs one prefill in the `output` steps of its life, so batch/output prompts come into a
    step: below one, that is the share of steps that carry a whole prompt; above it every step carries as many.
    """
    batch, prompt, output = float(row["batch"]), float(row["prompt_tokens"]), float(row["output_tokens"])
    a_step = batch / output
    carrying, prompts = (a_step, 1.0) if a_step < 1 else (1.0, a_step)
    context = prompt + output / 2
    group.add(
        "serving",
        carrying,
        (batch, batch + prompts * prompt),
        batch * context,
        a_step * prompt * prompt / 2,
        float(row["tpot_ms"]) / 1e3,
    )
