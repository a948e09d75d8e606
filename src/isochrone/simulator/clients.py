"""Production clients as ServeGen publishes them: each with its own rate and burstiness over the day, and its lengths.

A line holds `windows_600s`: [start_s, rate_rps, cv, Gamma | Weibull, shape, scale] for each ten minutes in which the
client was active (gaps between its requests in seconds), and `lengths`: by windows of six hours the quantiles of its
prompts and answers. Clients without lengths (their files were too large to publish) take those of another client,
drawn by chance, so that their share of the rate is kept.
"""

import random
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from isochrone.simulator.draws import Quantiles
from isochrone.simulator.formats import UNREADABLE, Line, json_lines, opened
from isochrone.simulator.workload import BadWorkload, Call

WINDOW_S = 600.0
AT = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
GAP_S_MIN = 1e-6

Lengths = list[tuple[float, Quantiles, Quantiles]]
"""(start of the window in seconds, prompt, output), by start."""


class Client:
    """One client."""

    def __init__(self, line: Line) -> None:
        self.number = line.count("client", least=0)
        self.windows: list[tuple[float, float, str, float, float]] = [
            _window(line, window) for window in _list(line, "windows_600s")
        ]
        self.lengths = _lengths(line)

    def arrivals(self, chance: random.Random, start_s: float, end_s: float, scale: float) -> Iterator[float]:
        """Seconds of the day at which it asks."""
        for begin, rate, family, shape, width in self.windows:
            first, last = max(begin, start_s), min(begin + WINDOW_S, end_s)
            if first >= last or rate <= 0.0:
                continue
            at = first
            while True:
                gap = chance.gammavariate(shape, width) if family == "Gamma" else chance.weibullvariate(width, shape)
                at += max(gap, GAP_S_MIN) / scale
                if at >= last:
                    break
                yield at


def draw(path: str, chance: random.Random, start_s: float, seconds: float, scale: float) -> list[Call]:
    """All clients' requests from `start_s` of the day on, `scale` times as many, in order of time."""
    clients = _read(path)
    with_lengths = [client for client in clients if client.lengths]
    if not with_lengths:
        raise BadWorkload(f"{path} holds no client with lengths")
    calls = []
    for client in clients:
        lengths = client.lengths or chance.choice(with_lengths).lengths
        starts = [start for start, _, _ in lengths]
        for at in client.arrivals(chance, start_s, start_s + seconds, scale):
            _, prompt, output = lengths[max(0, bisect_right(starts, at) - 1)]
            when = round((at - start_s) * 1e9)
            calls.append(Call(when, prompt.draw(chance), output.draw(chance), route=f"client-{client.number}"))
    calls.sort(key=_by_time)
    return calls


def _read(path: str) -> list[Client]:
    try:
        with opened(path) as file:
            return [Client(line) for line in json_lines(path, file)]
    except UNREADABLE as error:
        raise BadWorkload(f"{path} cannot be read: {error}") from None


def _list(line: Line, field: str) -> list[Any]:
    value = line.fields.get(field)
    if not isinstance(value, list):
        raise line.wrong(field, "a list")
    return value


def _window(line: Line, window: Any) -> tuple[float, float, str, float, float]:
    try:
        begin, rate, _, family, shape, width = window
        if family in ("Gamma", "Weibull") and min(begin, rate) >= 0 and min(shape, width) > 0:
            return float(begin), float(rate), str(family), float(shape), float(width)
    except (TypeError, ValueError):
        pass
    raise line.wrong("windows_600s", "[start_s, rate_rps, cv, Gamma or Weibull, shape, scale]")


def _lengths(line: Line) -> Lengths:
    value = line.fields.get("lengths")
    if value is None:
        return []
    try:
        found = [
            (float(start), Quantiles(AT, by["input_tokens"]["q"]), Quantiles(AT, by["output_tokens"]["q"]))
            for start, by in value.items()  # type: ignore[attr-defined]
        ]
    except (AttributeError, KeyError, TypeError, AssertionError):
        raise line.wrong("lengths", "windows with quantiles q of input_tokens and output_tokens") from None
    return sorted(found, key=_by_start)


def _by_start(one: tuple[float, Quantiles, Quantiles]) -> float:
    return one[0]


def _by_time(call: Call) -> int:
    return call.at
