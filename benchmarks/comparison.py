"""The comparison of docs/internals/evidence.md: equal-cost against other gateways' policies on public workloads.

    python benchmarks/comparison.py --traces DIR --keep runs.jsonl            # all cells, five seeds
    python benchmarks/comparison.py --traces DIR --cell azure-above --seeds 2
    python benchmarks/comparison.py --traces DIR --parts --keep parts.jsonl   # what each part gains

DIR holds the public traces. Finished runs are kept in a file (`isochrone simulate --resume`), so that hours of work may
be interrupted. Prints Markdown. Each cell is one `isochrone simulate` command, printed above its table.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ARMS = (
    "equal-cost", "smetric+admission", "dynamo-lmetric+admission", "estimated-time+admission", "least-request",
)  # fmt: skip
"""Equal cost; the peers that came nearest to it inside our admission, where each of them does best; and one that holds
and sheds nothing."""
PLAIN = ("equal-cost", "smetric", "dynamo-lmetric", "estimated-time", "least-request")
"""For large clusters: inside our admission a peer's formula is asked again for every request that waits, which takes
hours there."""
BIG = "h100-70b-tp4"

CELLS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # name: what it is, options of `isochrone simulate` (DIR: the traces), arms
    "conversation": (
        "Mooncake conversation at four times its rate, 16 instances",
        f"-w DIR/mooncake_conversation.jsonl.gz --instances 16 --profile {BIG} --rate-scale 4",
        ("all",),
    ),
    "synthetic": (
        "Mooncake synthetic at four times its rate, 16 instances",
        f"-w DIR/mooncake_synthetic.jsonl.gz --instances 16 --profile {BIG} --rate-scale 4",
        ARMS,
    ),
    "azure-below": (
        "Azure 2023 conversation below the knee, 4 instances",
        f"-w DIR/azure2023_conv.jsonl.gz --instances 4 --profile {BIG} --rate-scale 6 --window 0:600",
        ARMS,
    ),
    "azure-above": (
        "Azure 2023 conversation above the knee, 4 instances",
        f"-w DIR/azure2023_conv.jsonl.gz --instances 4 --profile {BIG} --rate-scale 10 --window 0:600",
        ARMS,
    ),
    "agents": (
        "Coding agents in 80 salted copies, 4 instances",
        "-w DIR/lmcache_agent_miniswe.jsonl.gz --instances 4 --profile h100-8b --rate-scale 80 --window 0:240",
        ARMS,
    ),
    "servegen": (
        "ServeGen m-large clients at 0.9 of their rate, 16 instances",
        f"-w generate:servegen,file=DIR/servegen_m-large_clients.jsonl.gz,seconds=60 --instances 16 --profile {BIG}"
        " --rate-scale 0.9",
        ARMS,
    ),
    "two-slow": (
        "Mooncake conversation at three times its rate, 2 of 16 instances 2.5 times slower",
        f"-w DIR/mooncake_conversation.jsonl.gz --instances 16 --profile {BIG} --rate-scale 3 --window 0:900"
        " --slow 0:2.5 --slow 1:2.5",
        ARMS,
    ),
    "two-classes": (
        "Mooncake conversation at four times its rate, half of 8 instances of a slower class",
        "-w DIR/mooncake_conversation.jsonl.gz --instances 8 --profile h100-8b:4 --profile a100-8b:4 --rate-scale 4"
        " --window 0:900",
        ARMS,
    ),
    "sixty-four": (
        "Mooncake conversation at 16 times its rate, 64 instances",
        f"-w DIR/mooncake_conversation.jsonl.gz --instances 64 --profile {BIG} --rate-scale 16 --window 0:300",
        PLAIN,
    ),
    "thousand": (
        "ShareGPT-like chats, 1,000 instances, 15,000 requests",
        "-w generate:sharegpt --requests 15000 --instances 1000",
        PLAIN,
    ),
}
SEEDS = {"sixty-four": 2, "thousand": 2}
"""Fewer than the rest where runs are large."""
PARTS = ("conversation-part", "azure-part")
PARTS_OPTIONS = [
    "--without",
    "all",
    *(word for told in ("1", "1.4", "0.6", "1:0.2", "1:0.4") for word in ("--step-times", told)),
]
"""Each part left out, and step times that are told, true and wrong, instead of learnt."""
for _name, _of, _window in (("conversation-part", "conversation", "0:300"), ("azure-part", "azure-above", "0:240")):
    _about, _options, _ = CELLS[_of]
    CELLS[_name] = (
        f"{_about}, seconds {_window}",
        f"{_options.split(' --window')[0]} --window {_window}",
        ("equal-cost",),
    )
COLUMNS = (
    ("goodput", "goodput_ratio", 100.0, "{:.1f}"),
    ("tokens", "token_goodput_ratio", 100.0, "{:.1f}"),
    ("served", "served_ratio", 100.0, "{:.1f}"),
    ("longest tenth", "served_ratio_longest_decile", 100.0, "{:.1f}"),
    ("TTFT p50", "ttft_p50_s", 1.0, "{:.2f}"),
    ("TTFT p99", "ttft_p99_s", 1.0, "{:.2f}"),
    ("TPOT p99", "tpot_p99_s", 1000.0, "{:.0f}"),
    ("E2E p99", "e2e_p99_s", 1.0, "{:.1f}"),
    ("hits", "hit_ratio", 100.0, "{:.1f}"),
    ("preempted", "preemptions", 1.0, "{:.0f}"),
)


def simulate(command: list[str]) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*command, "--json", "--output", file.name], check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(Path(file.name).read_text())
    return found


def table(found: dict[str, Any], arms: list[str]) -> str:
    """Means over the seeds; goodput with half its 95 % interval, and what the first arm has more, paired by seed."""
    lines = ["| | goodput % | equal-cost is better by | " + " | ".join(name for name, *_ in COLUMNS[1:]) + " |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    for arm in arms:
        figures = found["policies"][arm]
        interval = figures["intervals"]["goodput_ratio"]
        cells = [f"{100 * figures['goodput_ratio']:.1f}" + (f" ± {100 * interval:.1f}" if interval is not None else "")]
        gap = found["against"].get(f"{arms[0]} - {arm}", {}).get("goodput_ratio")
        cells.append("" if gap is None else _difference(gap))
        for _, key, scale, form in COLUMNS[1:]:
            cells.append("-" if figures[key] is None else form.format(scale * figures[key]))
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _difference(gap: dict[str, Any]) -> str:
    width = f" ± {100 * gap['interval']:.1f}" if gap["interval"] is not None else ""
    return f"{100 * gap['difference']:+.1f}{width}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", required=True, help="Where the public traces are.")
    parser.add_argument("--cell", action="append", choices=sorted(CELLS), help="Only these; repeatable.")
    parser.add_argument("--parts", action="store_true", help="What each part gains, instead of the comparison.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", help="A file of finished runs, to go on from.")
    parser.add_argument("--command", default="isochrone", help="What to run.")
    asked = parser.parse_args()
    cells = asked.cell or (PARTS if asked.parts else [name for name in CELLS if name not in PARTS])
    for name in cells:
        about, options, arms = CELLS[name]
        seeds = min(asked.seeds, SEEDS.get(name, asked.seeds))
        shown = f"isochrone simulate {options} -p {','.join(arms)} --seeds {seeds}"
        more = PARTS_OPTIONS if asked.parts else []
        command = [*shlex.split(shown.replace("DIR", asked.traces)), *more, "--workers", str(asked.workers)]
        command[0:1] = shlex.split(asked.command)
        found = simulate(command + (["--resume", asked.keep] if asked.keep else []))
        ordered = list(found["policies"])
        print(f"\n**{about}** ({found['offered_rps']:.1f} requests/s)\n")
        print("    " + " ".join([shown, *more]) + "\n")
        print(table(found, ordered))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
