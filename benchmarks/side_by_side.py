"""What a router itself costs, ours and others side by side in one run.

    python benchmarks/side_by_side.py --bench DIR [--peers vllm-router,sglang-router,smg,envoy] [--ours ours,ours-2]
        [--instances 8] [--rounds 3] [--quick] [--json]

DIR holds `mock.c`, engines that cost next to nothing, and `load.c`, a client; both are compiled with gcc at the first
use. `ours-2` is ours with two relay processes. The router under test has the last core to itself, engines and client
have the first one. Routers take turns, A B C, then C B A, so that a machine that drifts hurts all alike.

CPU is user and system time of the router's whole process tree. MB are PSS: pages that processes share count once.
Medians over the rounds. `added`: time to the first token at 500 streams/s less what it is without a router.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from routers import CACHE, KEY, command, environment

BASE_PORT = 19_000
"""Of the engines; one after the other."""
PORT = 18_100
"""Of the router under test."""
STREAMS_OPEN = 1000
ROW = dict[str, float]
ROWS: tuple[tuple[str, str], ...] = (
    ("request_us", "CPU us per request, not streamed, 64 connections"),
    ("request_64kb_us", "CPU us per request of 64 KB"),
    ("paced_request_us", "CPU us per request, not streamed, 500 a second"),
    ("chunk_us", "CPU us per streamed chunk, 256 streams as fast as they go"),
    ("paced_chunk_us", "CPU us per streamed chunk, 64 streams, one each 10 ms"),
    ("ttft_p50_us", "added time to first token at 500/s, p50, us"),
    ("ttft_p99_us", "the same, p99, us"),
    ("idle_mb", "MB idle"),
    ("stream_kb", "KB per open stream, 1,000 of them"),
    ("requests_per_s", "requests/s of its core, 64 connections"),
    ("errors", "errors"),
)


class Rig:
    """Engines, a client, and one router at a time."""

    def __init__(self, sources: Path, instances: int, quick: bool) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        self.load_program, self.mock_program = (_compiled(sources / f"{name}.c") for name in ("load", "mock"))
        self.ports = [BASE_PORT + number for number in range(instances)]
        self.seconds = 2 if quick else 4
        self.streams = 1 if quick else 2
        self._router: subprocess.Popen[bytes] | None = None
        metrics = sorted(sources.glob("*metrics*.txt"))
        more = ("-M", str(metrics[0])) if metrics else ()
        self._engines = subprocess.Popen(
            ["taskset", "-c", "0", self.mock_program, "-p", str(BASE_PORT), "-n", str(instances), *more],
            stdout=subprocess.DEVNULL,
        )
        _wait(lambda: _answers(BASE_PORT), 5.0, "the engines do not come up")

    def close(self) -> None:
        self._engines.kill()
        self._engines.wait()

    def load(self, port: int, *options: object) -> dict[str, Any]:
        """Run the client; what it reports."""
        done = subprocess.run(
            ["taskset", "-c", "0", self.load_program, "-p", str(port), *map(str, options)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def pace(self, interval_us: int) -> None:
        """Time between two chunks of a stream, at all engines."""
        urllib.request.urlopen(f"http://127.0.0.1:{BASE_PORT}/__ctl?port=all&interval_us={interval_us}").read()

    def first_token(self, port: int) -> tuple[float, float, int]:
        """Time to first token of 500 streams/s, p50 and p99 in us, and errors."""
        self.pace(1000)
        report = self.load(port, "-s", "-r", 500, "-c", 256, "-k", 4, "-t", self.seconds)
        return report["ttft_us"]["p50"], report["ttft_us"]["p99"], _errors(report)

    def measure(self, name: str) -> ROW:
        """Start a router, measure it, end it."""
        with open(CACHE / f"{name}.log", "wb") as log:
            core = str((os.cpu_count() or 1) - 1)
            router = subprocess.Popen(
                ["taskset", "-c", core, *command(name, self.ports, PORT)],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            _wait(lambda: _answers(PORT), 40.0, f"{name} does not come up: see {CACHE / name}.log")
            return self._figures(router.pid)
        finally:
            os.killpg(router.pid, signal.SIGTERM)
            try:
                router.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(router.pid, signal.SIGKILL)
                router.wait()

    def _figures(self, pid: int) -> ROW:
        row: ROW = {"errors": 0}

        def cost(figure: str, count: str, *options: object) -> dict[str, Any]:
            _settle(pid)
            before = cpu_s(pid)
            report = self.load(PORT, *options)
            row[figure] = (cpu_s(pid) - before) * 1e6 / max(1, report[count])
            row["errors"] += _errors(report)
            return report

        _settle(pid)
        row["idle_mb"] = pss_kb(pid) / 1024
        row["stream_kb"] = self._stream_kb(pid)
        self.pace(10_000)
        row["requests_per_s"] = cost("request_us", "ok", "-c", 64, "-t", self.seconds)["rps"]
        cost("request_64kb_us", "ok", "-c", 64, "-b", 65_536, "-t", self.seconds)
        cost("paced_request_us", "ok", "-c", 64, "-r", 500, "-t", self.seconds)
        cost("paced_chunk_us", "events", "-s", "-c", 64, "-k", 128, "-n", 64 * self.streams, "-t", 30)
        self.pace(0)
        cost("chunk_us", "events", "-s", "-c", 256, "-k", 128, "-n", 1024 * self.streams, "-t", 60)
        _settle(pid)
        row["ttft_p50_us"], row["ttft_p99_us"], errors = self.first_token(PORT)
        row["errors"] += errors
        return row

    def _stream_kb(self, pid: int) -> float:
        """Memory of 1,000 streams that have begun and say a word each second."""
        self.pace(1_000_000)
        before = pss_kb(pid)
        client = subprocess.Popen(
            ["taskset", "-c", "0", self.load_program, "-p", str(PORT), "-s", "-c", str(STREAMS_OPEN), "-k", "60",
             "-b", "1024", "-n", str(STREAMS_OPEN), "-t", "60"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(3.0)
            return (pss_kb(pid) - before) / STREAMS_OPEN
        finally:
            client.kill()
            client.wait()


def _compiled(source: Path) -> str:
    program = CACHE / source.stem
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
    return str(program)


def _errors(report: dict[str, Any]) -> int:
    return sum(report["err"].values())


def _answers(port: int) -> bool:
    """A small request is served."""
    body = b'{"model":"mock","messages":[{"role":"user","content":"hi"}],"max_tokens":2}'
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY.decode()}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _wait(done: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            raise SystemExit(otherwise)
        time.sleep(0.2)


def _settle(pid: int) -> None:
    """Wait until the router is at rest, 10 s at most."""
    for _ in range(40):
        before = cpu_s(pid)
        time.sleep(0.25)
        if cpu_s(pid) - before < 0.05:
            return


def tree(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += tree(int(child))
    return found


def cpu_s(pid: int) -> float:
    """User and system time of the process tree."""
    ticks = 0
    for one in tree(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_kb(pid: int) -> int:
    """Memory of the process tree; what its processes share counts once."""
    pages = (Path(f"/proc/{one}/smaps_rollup").read_text() for one in tree(pid))
    return sum(int(found[1]) for text in pages if (found := re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)))


def medians(rounds: list[ROW]) -> ROW:
    return {figure: statistics.median(row[figure] for row in rounds) for figure in rounds[0]}


def show(found: dict[str, ROW]) -> None:
    """The table, in Markdown."""
    print("| | " + " | ".join(found) + " |")
    print("|---" * (len(found) + 1) + "|")
    for figure, text in ROWS:
        cells = (f"{row[figure]:.1f}" if row[figure] < 20 else f"{row[figure]:.0f}" for row in found.values())
        print(f"| {text} | " + " | ".join(cells) + " |")


def run(options: argparse.Namespace) -> dict[str, ROW]:
    names = [name for name in f"{options.ours},{options.peers}".split(",") if name]
    for name in names:
        if not name.startswith("ours"):
            environment(name)
    rig = Rig(options.bench, options.instances, options.quick)
    rounds: dict[str, list[ROW]] = {name: [] for name in names}
    try:
        direct = rig.first_token(BASE_PORT)
        for number in range(options.rounds):
            for name in names if number % 2 == 0 else names[::-1]:
                rounds[name].append(rig.measure(name))
                print(f"round {number + 1}: {name} done", json.dumps(rounds[name][-1]), file=sys.stderr)
    finally:
        rig.close()
    found = {name: medians(rows) for name, rows in rounds.items()}
    for row in found.values():
        row["ttft_p50_us"] -= direct[0]
        row["ttft_p99_us"] -= direct[1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, required=True, metavar="DIR")
    parser.add_argument("--ours", default="ours,ours-2")
    parser.add_argument("--peers", default="vllm-router,sglang-router,smg,envoy")
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was through"))  # so that routers end too
    found = run(options)
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
