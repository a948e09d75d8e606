"""Plots as inline SVG: lines and bars, nothing to load."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, isfinite, log10

COLOURS = ("#0b6e99", "#c8553d", "#588157", "#8e6bbf", "#b08900", "#3d405b", "#d1495b", "#5f7a8a", "#99582a", "#2a9d8f")
DASHES = ("", "6 3", "2 3")
"""After all colours have been had once, the same in dashes, then in dots."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 60, 12, 26, 40
LABELS, FIGURES, ROW = 200, 110, 20
"""Of bars: room for their names, for their figures, and the height of one."""
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

    def __init__(
        self, xs: Sequence[float], ys: Sequence[float], log_x: bool, left: int = LEFT, right: int = RIGHT
    ) -> None:
        self.log_x, self.left, self.right = log_x, left, right
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
        return self.left + (self._x(x) - self.x0) / (self.x1 - self.x0) * (WIDTH - self.left - self.right)

    def down(self, y: float) -> float:
        return HEIGHT - BOTTOM - (y - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def x_ticks(self) -> list[float]:
        if not self.log_x:
            return ticks(self.x0, self.x1)
        steps = (1, 2, 5) if self.x1 - self.x0 < 3 else (1,)
        every = (step * 10.0**power for power in range(floor(self.x0), ceil(self.x1) + 1) for step in steps)
        return [x for x in every if self.x0 <= log10(x) <= self.x1] or [10.0**self.x0, 10.0**self.x1]


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
        dashes = DASHES[number // len(COLOURS) % len(DASHES)]
        parts.append(
            f'<polyline fill="none" stroke="{_colour(number)}" stroke-width="1.6" stroke-dasharray="{dashes}" '
            f'points="{points}"/>'
        )
        if len(line_xs) <= 12:
            parts += [f'<circle r="2.6" fill="{_colour(number)}" cx="{p.split(",")[0]}" cy="{p.split(",")[1]}"/>'
                      for p in points.split()]  # fmt: skip
    return _figure(parts, list(shown) if len(shown) <= len(COLOURS) * len(DASHES) else [])


def bars(title: str, x_name: str, named: Mapping[str, tuple[float, float | None]]) -> str:
    """A lying bar from zero for each name, with half the width of its interval, and both in figures."""
    spread = [value + sign * (interval or 0.0) for value, interval in named.values() for sign in (-1, 1)]
    frame = Frame([0.0, *spread], [0.0], log_x=False, left=LABELS, right=FIGURES)
    height = TOP + ROW * len(named) + BOTTOM
    parts = [_open(title, height), *_across(frame, x_name, height, grid=True)]
    zero = frame.across(0.0)
    for number, (name, (value, interval)) in enumerate(named.items()):
        y, end = TOP + ROW * number, frame.across(value)
        middle = y + ROW / 2
        parts.append(
            f'<text class="name" x="{LABELS - 6}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{min(zero, end):.1f}" y="{y + 3:.1f}" width="{abs(end - zero):.1f}" height="{ROW - 6}" '
            f'fill="{_colour(number)}"/>'
        )
        if interval:
            low, high = frame.across(value - interval), frame.across(value + interval)
            parts.append(f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>')
        figure = f"{value:.4g}" + (f" ± {interval:.2g}" if interval is not None else "")
        parts.append(f'<text class="name" x="{WIDTH - FIGURES + 8}" y="{middle + 4:.1f}">{figure}</text>')
    return _figure(parts, [])


def _open(title: str, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f'<text class="title" x="4" y="15">{escape(title)}</text>'
    )


def _axes(frame: Frame, x_name: str, y_name: str) -> list[str]:
    parts = _across(frame, x_name)
    for y in ticks(frame.y0, frame.y1):
        at = frame.down(y)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    parts.append(
        f'<text class="name" transform="translate(13 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>"
    )
    return parts


def _across(frame: Frame, x_name: str, height: int = HEIGHT, grid: bool = False) -> list[str]:
    """The axis below, with upright lines where there are none across."""
    parts = []
    for x in frame.x_ticks():
        at = frame.across(x)
        if grid:
            parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{height - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{height - BOTTOM + 15}" text-anchor="middle">{x:.4g}</text>')
    middle = (frame.left + WIDTH - frame.right) / 2
    parts.append(f'<text class="name" x="{middle}" y="{height - 6}" text-anchor="middle">{escape(x_name)}</text>')
    return parts


def _figure(parts: Sequence[str], names: Sequence[str]) -> str:
    legend = "".join(
        f'<span><svg class="key" viewBox="0 0 22 8"><path d="M0 4H22" stroke="{_colour(number)}" stroke-width="3" '
        f'stroke-dasharray="{DASHES[number // len(COLOURS) % len(DASHES)]}"/></svg>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f"<figure>{''.join(parts)}</svg><figcaption>{legend}</figcaption></figure>"


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
