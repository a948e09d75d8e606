"""One self-contained HTML page about a sweep."""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean

import msgspec

from isochrone.simulator import plots
from isochrone.simulator.figures import MEANINGS
from isochrone.simulator.results import Point, by_point, compared, half_width, leader, notes
from isochrone.simulator.sweep import Result

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1340px;padding:0 1rem;color:#1d2733;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;font-size:13px}
th,td{padding:.25rem .45rem;border-bottom:1px solid #d8dee4;text-align:right}
th:first-child,td:first-child{text-align:left}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(560px,100%),1fr));gap:1rem}figure{margin:0}
svg{width:100%;height:auto}svg.key{width:22px;height:8px;margin-right:4px}
.title{font-weight:600;font-size:13px}.tick,.name{font-size:11px;fill:#52606d}
.grid{stroke:#e4e9ee}.whisker{stroke:#1d2733;stroke-width:1.4}figcaption{font-size:12px}
figcaption span{margin-right:1rem;white-space:nowrap}td,th{white-space:nowrap}
.words td{white-space:normal;text-align:left;overflow-wrap:anywhere}
details{margin-top:.8rem}summary{cursor:pointer;font-size:13px}.plots{margin-top:1rem}
.wide{overflow-x:auto}.note{color:#52606d}
"""
TITLES = {
    "goodput_ratio": "Goodput",
    "token_goodput_ratio": "Token goodput",
    "ttft_p99_s": "Time to first token, p99,",
    "e2e_p99_s": "Whole answer, p99,",
    "hit_ratio": "Prefix cache hits",
}
COLUMNS = (
    "goodput_ratio", "token_goodput_ratio", "served_ratio", "ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "e2e_p99_s",
    "slowdown_p99", "hit_ratio", "preemptions",
)  # fmt: skip
"""Of the table; the JSON has all."""


def page(results: Sequence[Result], arms: Sequence[str], about: Mapping[str, object]) -> str:
    """The whole page."""
    points = by_point(results)
    body = [
        "<h1>Simulated comparison</h1>",
        f"<table class=words>{_about(about)}</table>",
        *(f"<p class=note>{escape(note)}</p>" for note in notes(results)),
    ]
    if len(points) > 1:
        body.append(f"<h2>All points</h2><div class=plots>{_over_points(points, arms)}</div>")
    for point, found in points.items():
        body.append(_section(point, {arm: found[arm] for arm in arms if arm in found}))
    meanings = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in MEANINGS.items() if v)
    body.append(f"<h2>Columns</h2><table class=words>{meanings}</table>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>isochrone simulate</title>'
        f"<style>{STYLE}</style><body>{''.join(body)}</body></html>"
    )


def _about(about: Mapping[str, object]) -> str:
    """A line for each thing that was asked for; what was not is left out."""
    lines = []
    for name, value in about.items():
        if value not in (None, False, [], [0.0, None]):
            shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            lines.append(f"<tr><td>{escape(name)}</td><td>{escape(shown)}</td></tr>")
    return "".join(lines)


def _over_points(points: Mapping[Point, Mapping[str, list[Result]]], arms: Sequence[str]) -> str:
    """Goodput and tails against the rate (or the number of instances, where that is what varies)."""
    varies_rate = len({rate for rate, _ in points}) > 1
    name = "offered requests/s" if varies_rate else "instances"
    made = []
    for figure in ("goodput_ratio", "ttft_p99_s", "e2e_p99_s", "hit_ratio"):
        named = {}
        for arm in arms:
            places = [
                (
                    fmean(result.offered_rps for result in found[arm]) if varies_rate else float(instances),
                    _mean_of(found[arm], figure),
                )
                for (_, instances), found in points.items()
                if arm in found
            ]
            named[arm] = ([x for x, _ in sorted(places)], [y for _, y in sorted(places)])
        made.append(plots.lines(f"{TITLES[figure]} against {name}", name, figure, named))
    return "".join(made)


def _section(point: Point, found: Mapping[str, list[Result]]) -> str:
    rate_scale, instances = point
    parts = [f"<h2>Rate x{rate_scale:g}, {instances} instances</h2><div class=wide>{_table(found)}</div>"]
    made = []
    for figure in ("goodput_ratio", "token_goodput_ratio"):
        heights = {}
        for arm, results in found.items():
            values = [value for result in results if (value := result.figures[figure]) is not None]
            heights[arm] = (fmean(values) if values else 0.0, half_width(values))
        made.append(plots.bars(f"{TITLES[figure]}, mean over seeds with 95 % interval", figure, heights))
    made += _differences(found)
    for title, cdf in (("Time to first token", "ttft_cdf"), ("Whole answer", "e2e_cdf")):
        named = {}
        for arm, results in found.items():
            values = next((curve for result in results if (curve := getattr(result, cdf))), [])
            named[arm] = (values, [k / max(1, len(values) - 1) for k in range(len(values))])
        made.append(plots.lines(f"{title}: share of served calls", "seconds", "share", named, log_x=True))
    parts.append(f"<div class=plots>{''.join(made)}</div>")
    for number, (arm, results) in enumerate(found.items()):
        lines = _timelines(arm, results)
        if lines:
            state = " open" if number == 0 else ""
            parts.append(f"<details{state}><summary>{escape(arm)}: over time, by instance</summary>{lines}</details>")
    return "".join(parts)


def _differences(found: Mapping[str, list[Result]]) -> list[str]:
    """What the others lose (or gain) against the arm that they are compared with; for its parts, what each is worth."""
    first = leader(found)
    made = []
    for figure in ("goodput_ratio", "token_goodput_ratio") if len(found) > 1 else ():
        gaps = {arm: compared(found[first], some)[figure] for arm, some in found.items()}
        lengths = {arm: (gap["difference"] or 0.0, gap["interval"]) for arm, gap in gaps.items()}
        title = f"{TITLES[figure]}: {first} minus each, paired by seed"
        made.append(plots.bars(title, f"difference of {figure}", lengths))
    return made


def _table(found: Mapping[str, list[Result]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("policy", *COLUMNS))
    rows = []
    for arm, results in found.items():
        cells = []
        for name in COLUMNS:
            values = [value for result in results if (value := result.figures[name]) is not None]
            interval = half_width(values)
            text = f"{fmean(values):.4g}" if values else "-"
            cells.append(f"<td>{text}{f' ± {interval:.2g}' if interval else ''}</td>")
        rows.append(f"<tr><td>{escape(arm)}</td>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _timelines(arm: str, results: Sequence[Result]) -> str:
    """Load and memory by instance, of the first seed that kept them."""
    line = next((result.timeline for result in results if result.timeline), None)
    if line is None:
        return ""
    at = line["at_s"]
    made = []
    for key, name in (("running", "requests"), ("kv_usage", "share of KV memory")):
        by_instance = line[key]
        assert isinstance(by_instance, dict)
        named = {instance: (at[: len(values)], values) for instance, values in by_instance.items()}  # type: ignore[index]
        made.append(plots.lines(f"{arm}: {name} by instance", "seconds", name, named))
    made.append(plots.lines(f"{arm}: held in the gateway", "seconds", "requests", {arm: (at, line["held"])}))  # type: ignore[dict-item]
    return f"<div class=plots>{''.join(made)}</div>"


def _mean_of(results: Sequence[Result], figure: str) -> float:
    values = [value for result in results if (value := result.figures[figure]) is not None]
    return fmean(values) if values else float("nan")
