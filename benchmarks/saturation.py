"""Does holding requests back waste engines? Tokens/s at saturation, and a cold gateway's first burst.

    .venv/bin/python benchmarks/saturation.py                                   two emulated engines
    .venv/bin/python benchmarks/saturation.py --instance URL --instance URL     engines that are already up

Saturation: closed loop, twice the concurrency that fills the engines, no objectives. Each pair runs both policies one
after the other, each behind a fresh gateway that is not told what the engines are; every second pair runs them in the
other order. Reported is the ratio of output tokens/s, equal-cost over least-request, with a 90 % interval over pairs.
Burst: a fresh gateway gets as many requests at once as the closed loop keeps in flight; the ratio of its latencies.

Exit status 1: `--floor` was given and the lower end of the interval is below it.
"""

import asyncio
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import msgspec
import uvloop

from isochrone.cli import rig
from isochrone.loadgen.calls import Call, Result
from isochrone.loadgen.client import Client
from isochrone.loadgen.drive import closed_loop
from isochrone.loadgen.report import percentile
from isochrone.loadgen.text import words

NEW, OLD = "equal-cost", "least-request"
T_90 = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833}
"""Two-sided 90 % quantiles of Student's t by degrees of freedom; beyond nine the normal's 1.645 is used."""
CALL_S_MAX = 300.0
PROMPT_TOKENS = (100, 600)
OUTPUT_TOKENS = (50, 150)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    instances: tuple[str, ...]
    """Empty: emulated engines, started afresh for each run."""
    profile: str
    slots: int
    """max_num_seqs of each engine; the gateway is not told."""
    count: int
    pairs: int
    warm_s: float
    seconds: float
    concurrency: int
    prompt_tokens: tuple[int, int] = PROMPT_TOKENS
    output_tokens: tuple[int, int] = OUTPUT_TOKENS

    def order(self, pair: int) -> tuple[str, str]:
        """Which policy goes first."""
        return (NEW, OLD) if pair % 2 == 0 else (OLD, NEW)


@dataclass(frozen=True, slots=True)
class Ratio:
    """New over old, one number a pair, and the 90 % interval of their geometric mean."""

    pairs: tuple[float, ...]
    mean: float
    low: float
    high: float


def ratio(pairs: Sequence[float]) -> Ratio:
    """Student's t on the logarithms: pairs are few and ratios multiply."""
    logs = [math.log(each) for each in pairs]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(tuple(pairs), math.exp(mean), 0.0, math.inf)
    half = T_90.get(len(logs) - 1, 1.645) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(tuple(pairs), math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def calls(plan: Plan, model: str, sizes_seed: str, text_seed: str) -> Iterator[Call]:
    """Endless. Both policies of a pair get the same sizes; texts differ in every run: no cache helps the second."""
    sizes, text = random.Random(sizes_seed), random.Random(text_seed)
    while True:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": words(text, sizes.randint(*plan.prompt_tokens))}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": sizes.randint(*plan.output_tokens),
            "ignore_eos": True,
        }
        yield Call("/v1/chat/completions", msgspec.json.encode(body))


def tokens_between(results: Sequence[Result], start: float, end: float) -> float:
    """Output tokens in a span of time; a request's tokens count as evenly spread from its first to its last."""
    total = 0.0
    for result in results:
        first, last = result.first_token_at, result.last_token_at
        if first is None or last is None:
            continue
        length = max(last - first, 1e-9)
        total += result.tokens * max(0.0, min(last, end) - max(first, start)) / length
    return total


@asynccontextmanager
async def behind_gateway(plan: Plan, policy: str, logs: Path) -> AsyncIterator[tuple[Client, str]]:
    """A client to a fresh gateway, and the name of the first model it serves."""
    emulated = rig.Engines(plan.profile, plan.count, extra=("--max-num-seqs", str(plan.slots)))
    async with (
        _given(plan.instances) if plan.instances else rig.engines(emulated, logs) as urls,
        rig.gateway(urls, policy, logs) as port,
        Client("127.0.0.1", port, whole_s=CALL_S_MAX) as client,
    ):
        yield client, await asyncio.to_thread(_first_model, port)


@asynccontextmanager
async def _given(instances: Sequence[str]) -> AsyncIterator[list[str]]:
    yield list(instances)


def _first_model(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as answer:
        name = json.load(answer)["data"][0]["id"]
    assert isinstance(name, str)
    return name


async def saturated_tokens_per_s(plan: Plan, policy: str, pair: int, logs: Path) -> float:
    """Tokens/s of one run, its warm-up left out."""
    async with behind_gateway(plan, policy, logs) as (client, model):
        start = time.monotonic() + plan.warm_s
        source = calls(plan, model, f"sizes {pair}", f"text {pair} {policy}")
        results = await closed_loop(client, source, plan.concurrency, plan.warm_s + plan.seconds)
    _all_served(results, policy)
    return tokens_between(results, start, start + plan.seconds) / plan.seconds


async def burst(plan: Plan, policy: str, pair: int, logs: Path) -> tuple[float, float]:
    """(mean TTFT, E2E p99) in seconds of requests that all come at once to a gateway that knows nothing."""
    async with behind_gateway(plan, policy, logs) as (client, model):
        source = calls(plan, model, f"burst sizes {pair}", f"burst text {pair} {policy}")
        results = await asyncio.gather(*(client.call(call) for call in itertools.islice(source, plan.concurrency)))
    _all_served(results, policy)
    return (
        statistics.fmean(result.ttft_s or 0.0 for result in results),
        percentile([result.e2e_s or 0.0 for result in results], 0.99),
    )


def _all_served(results: Sequence[Result], policy: str) -> None:
    failed = [f"{result.error} {result.status}" for result in results if not result.served]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(results)} requests failed under {policy}: {failed[:3]}")


async def measure(plan: Plan, logs: Path) -> dict[str, Ratio]:
    """All pairs of both experiments."""
    made: dict[str, list[float]] = {"tokens_per_s": [], "burst_ttft_mean": [], "burst_e2e_p99": []}
    for pair in range(plan.pairs):
        rates = {policy: await saturated_tokens_per_s(plan, policy, pair, logs) for policy in plan.order(pair)}
        bursts = {policy: await burst(plan, policy, pair, logs) for policy in plan.order(pair)}
        made["tokens_per_s"].append(rates[NEW] / rates[OLD])
        made["burst_ttft_mean"].append(bursts[NEW][0] / bursts[OLD][0])
        made["burst_e2e_p99"].append(bursts[NEW][1] / bursts[OLD][1])
        click.echo(
            f"pair {pair + 1}/{plan.pairs}: tokens/s {rates[NEW]:.0f} against {rates[OLD]:.0f}; "
            f"burst mean TTFT {bursts[NEW][0]:.2f} s against {bursts[OLD][0]:.2f} s",
            err=True,
        )
    return {name: ratio(pairs) for name, pairs in made.items()}


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--instance", "instances", multiple=True, help="URL of an engine that is up; without: emulated engines.")
@click.option("--profile", default="a100-80g-27b-bf16", show_default=True, help="Of the emulated engines.")
@click.option("--count", default=2, show_default=True, help="Emulated engines.")
@click.option("--slots", default=16, show_default=True, help="Requests that fill one engine (max_num_seqs).")
@click.option("--pairs", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option("--warm", "warm_s", default=8.0, show_default=True, help="Seconds before the measured ones.")
@click.option("--seconds", default=20.0, show_default=True, help="Measured in a run.")
@click.option("--prompt-tokens", default=PROMPT_TOKENS, show_default=True, type=(int, int), help="Least and most.")
@click.option("--output-tokens", default=OUTPUT_TOKENS, show_default=True, type=(int, int), help="Least and most.")
@click.option("--floor", type=float, help="Least lower end of the interval of tokens/s; below it: exit status 1.")
@click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")
def command(
    instances: tuple[str, ...],
    profile: str,
    count: int,
    slots: int,
    pairs: int,
    warm_s: float,
    seconds: float,
    prompt_tokens: tuple[int, int],
    output_tokens: tuple[int, int],
    floor: float | None,
    as_object: bool,
) -> None:
    concurrency = 2 * slots * (len(instances) or count)
    plan = Plan(
        instances, profile, slots, count, pairs, warm_s, seconds, concurrency, prompt_tokens, output_tokens
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="isochrone-saturation-") as logs:
        try:
            ratios = uvloop.run(measure(plan, Path(logs)))
        except rig.RigError as broken:
            raise click.ClickException(str(broken)) from None
    if as_object:
        click.echo(json.dumps({**{name: asdict(each) for name, each in ratios.items()}, "settings": asdict(plan)}))
    else:
        for name, each in ratios.items():
            click.echo(f"{name:<16} {NEW} / {OLD}: {each.mean:.3f}  (90 % interval {each.low:.3f} to {each.high:.3f})")
    if floor is not None and ratios["tokens_per_s"].low < floor:
        sys.exit(1)


if __name__ == "__main__":
    command()
