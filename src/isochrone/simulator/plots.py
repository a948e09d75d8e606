"""Plots as inline SVG: lines and bars, nothing to load."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, isfinite, log10

COLOURS = ("#0b6e99", "#c8553d", "#588157", "#8e6bbf", "#b08900", "#3d405b", "#d1495b", "#5f7a8a", "#99582a", "#2a9d8f")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 60, 12, 26, 40
LINES_MAX = 64
"""Lines of one plot; further ones are left out, and the plot says so."""

Line = tuple[Sequence[float], Sequence[float]]
"""x and y of each point."""


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** floor(log10(raw))
    step = next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= raw)
    return [k * step for k in range(ceil(low / step), floor(high / step + 1e-9) + 1)]


class Frame:
    """Axes: where a value stands on the drawing."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], log_x: bool) -> None:
        self.log_x = log_x
        self.x0, self.x1 = self._range([self._x(x) for x in xs if not log_x or x > 0])
        self.y0, self.y1 = self._range([0.0, *ys])

    def _x(self, x: float) -> float:
        return log10(x) if self.log_x else x

    @staticmethod
    def _range(values: Sequence[float]) -> tuple[float, float]:
        finite = [value for value in values if isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        return (low, high) if high > low else (low, low + 1.0)

    def across(self, x: float) -> float:
        return LEFT + (self._x(x) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def down(self, y: float) -> float:
        return HEIGHT - BOTTOM - (y - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def x_ticks(self) -> list[float]:
        if not self.log_x:
            return ticks(self.x0, self.x1)
        return [10.0**power for power in range(ceil(self.x0), floor(self.x1) + 1)] or [10.0**self.x0, 10.0**self.x1]


def lines(title: str, x_name: str, y_name: str, named: Mapping[str, Line], log_x: bool = False) -> str:
    """A line for each name."""
    shown = dict(list(named.items())[:LINES_MAX])
    if len(named) > len(shown):
        title += f" (the first {LINES_MAX} of {len(named)})"
    xs = [x for line in shown.values() for x in line[0]]
    ys = [y for line in shown.values() for y in line[1]]
    frame = Frame(xs, ys, log_x)
    parts = [_open(title), *_axes(frame, x_name, y_name)]
    for number, (line_xs, line_ys) in enumerate(shown.values()):
        points = " ".join(
            f"{frame.across(x):.1f},{frame.down(y):.1f}"
            for x, y in zip(line_xs, line_ys, strict=True)
            if isfinite(y) and (x > 0 or not log_x)
        )
        parts.append(f'<polyline fill="none" stroke="{_colour(number)}" stroke-width="1.6" points="{points}"/>')
        if len(line_xs) <= 12:
            parts += [f'<circle r="2.6" fill="{_colour(number)}" cx="{p.split(",")[0]}" cy="{p.split(",")[1]}"/>'
                      for p in points.split()]  # fmt: skip
    return _figure(parts, list(shown) if len(shown) <= len(COLOURS) * 2 else [])


def bars(title: str, y_name: str, named: Mapping[str, tuple[float, float | None]]) -> str:
    """A bar for each name, with half the width of its interval."""
    ys = [value + (interval or 0.0) for value, interval in named.values()]
    frame = Frame([0.0, float(len(named))], ys, log_x=False)
    parts = [_open(title), *_axes(frame, "", y_name, x_ticks=False)]
    for number, (value, interval) in enumerate(named.values()):
        x, width = frame.across(number + 0.15), frame.across(number + 0.85) - frame.across(number + 0.15)
        top, floor_y = frame.down(max(value, frame.y0)), frame.down(frame.y0)
        parts.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{max(0.0, floor_y - top):.1f}" '
            f'fill="{_colour(number)}"/>'
        )
        if interval:
            high, low = frame.down(value + interval), frame.down(max(frame.y0, value - interval))
            middle = x + width / 2
            parts.append(f'<path class="whisker" d="M{middle:.1f} {high:.1f}V{low:.1f}"/>')
    return _figure(parts, list(named))


def _open(title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        f'<text class="title" x="{LEFT}" y="15">{escape(title)}</text>'
    )


def _axes(frame: Frame, x_name: str, y_name: str, x_ticks: bool = True) -> list[str]:
    parts = []
    for y in ticks(frame.y0, frame.y1):
        at = frame.down(y)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in frame.x_ticks() if x_ticks else ():
        at = frame.across(x)
        parts.append(f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{x:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="name" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(
        f'<text class="name" transform="translate(13 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>"
    )
    return parts


def _figure(parts: Sequence[str], names: Sequence[str]) -> str:
    legend = "".join(
        f'<span><i style="background:{_colour(number)}"></i>{escape(name)}</span>' for number, name in enumerate(names)
    )
    return f"<figure>{''.join(parts)}</svg><figcaption>{legend}</figcaption></figure>"


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
