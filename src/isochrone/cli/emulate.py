"""`isochrone emulate`: engines that are not there."""

import dataclasses
import math
import os
import sys
from collections.abc import Sequence

import click
import msgspec
import uvloop

from isochrone.emulator.instance import Character
from isochrone.emulator.server import Place, serve_until_signal
from isochrone.twin.profiles import PROFILES, Profile


def parse_slow(values: Sequence[str], count: int) -> dict[int, float]:
    """INDEX:FACTOR, index from 0."""
    slow: dict[int, float] = {}
    for value in values:
        index_text, colon, factor_text = value.partition(":")
        try:
            index, factor = int(index_text), float(factor_text)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not INDEX:FACTOR, as in 0:2.5", param_hint="--slow") from None
        if not colon or not 0 <= index < count or not 0 < factor < math.inf:
            raise click.BadParameter(
                f"{value!r}: the index goes from 0 to {count - 1}, the factor is above 0", param_hint="--slow"
            )
        slow[index] = factor
    return slow


def adapt(
    profile: Profile, max_num_seqs: int | None, kv_tokens: int | None, chunk: int | None, max_model_len: int | None
) -> Profile:
    """The profile with what the command line changes."""
    return dataclasses.replace(
        profile,
        max_num_seqs=max_num_seqs or profile.max_num_seqs,
        kv_tokens=kv_tokens or profile.kv_tokens,
        chunk_tokens=chunk or profile.chunk_tokens,
        max_model_len=max_model_len or profile.max_model_len,
    )


def list_profiles(as_json: bool) -> str:
    if as_json:
        return msgspec.json.format(msgspec.json.encode([dataclasses.asdict(one) for one in PROFILES.values()])).decode()
    lines = [f"{'PROFILE':<20}{'STEP':>8}{'KV TOKENS':>12}{'SEQUENCES':>11}{'CONTEXT':>9}  ABOUT"]
    for one in PROFILES.values():
        step_ms = one.step.seconds(1, 512, 0) * 1e3
        sizes = f"{one.kv_tokens:>12}{one.max_num_seqs:>11}{one.max_model_len:>9}"
        lines.append(f"{one.name:<20}{step_ms:>5.1f} ms{sizes}  {one.about}")
    lines.append("STEP: one decode step of a single sequence with 512 tokens of context.")
    return "\n".join(lines)


def write_ready_file(path: str, urls: list[str]) -> None:
    """The URLs as JSON, whole or not at all."""
    partial = f"{path}.partial"
    with open(partial, "wb") as out:
        out.write(msgspec.json.encode({"urls": urls}))
    os.replace(partial, path)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=9001,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of the first instance; 0: free ports.",
)
@click.option(
    "--count", default=1, show_default=True, type=click.IntRange(1, 1000), help="Instances, on consecutive ports."
)
@click.option(
    "--profile",
    default="h100-8b",
    show_default=True,
    type=click.Choice(sorted(PROFILES)),
    help="Model and device whose step times are used.",
)
@click.option("--model", default="emulated", show_default=True, help="Name of the model served.")
@click.option(
    "--speed",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="2: everything takes half the time.",
)
@click.option(
    "--slowdown",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="2.5: every step takes 2.5 times as long.",
)
@click.option(
    "--slow", multiple=True, metavar="INDEX:FACTOR", help="Slow down one instance more, counted from 0; repeatable."
)
@click.option("--max-num-seqs", type=click.IntRange(min=1), help="Most sequences in a step, instead of the profile's.")
@click.option(
    "--kv-tokens", type=click.IntRange(min=64), help="Tokens that the KV cache holds, instead of the profile's."
)
@click.option("--chunk", type=click.IntRange(min=1), help="Most tokens in a step, instead of the profile's.")
@click.option("--max-model-len", type=click.IntRange(min=16), help="Longest context, instead of the profile's.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Seed of the text; the same for all instances.",
)
@click.option(
    "--mean-output",
    default=200.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Mean tokens of an answer; 0: only max_tokens ends it.",
)
@click.option(
    "--keep-alive",
    default=5.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds until an idle connection is closed.",
)
@click.option(
    "--shutdown-timeout",
    default=20.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds that running answers get after SIGTERM.",
)
@click.option("--ready-file", type=click.Path(dir_okay=False), help='Written when all ports listen: {"urls": [...]}.')
@click.option("--list-profiles", "show_profiles", is_flag=True, help="Show the profiles and leave.")
@click.option("--json", "as_json", is_flag=True, help="With --list-profiles: as JSON.")
def command(
    host: str,
    port: int,
    count: int,
    profile: str,
    model: str,
    speed: float,
    slowdown: float,
    slow: tuple[str, ...],
    max_num_seqs: int | None,
    kv_tokens: int | None,
    chunk: int | None,
    max_model_len: int | None,
    seed: int,
    mean_output: float,
    keep_alive: float,
    shutdown_timeout: float,
    ready_file: str | None,
    show_profiles: bool,
    as_json: bool,
) -> None:
    """Run engines that are not there.

    Each has an OpenAI API, vLLM's /metrics and /health, and the timing of a real engine: continuous batching, chunked
    prefill, a paged KV cache with prefix sharing and preemption, on measured step times. Its words follow from all
    tokens before them, so a continued answer can be checked byte for byte.

    \b
      isochrone emulate --count 4 --slow 3:2.5       four H100, the last one 2.5x slow
      isochrone emulate --profile a100-80g-27b-bf16 --speed 10
    """
    if show_profiles:
        click.echo(list_profiles(as_json))
        return
    if as_json:
        raise click.UsageError("--json goes with --list-profiles only.")
    slow_by_index = parse_slow(slow, count)
    shape = adapt(PROFILES[profile], max_num_seqs, kv_tokens, chunk, max_model_len)
    characters = [
        Character(shape, model, slowdown * slow_by_index.get(index, 1.0) / speed, seed, mean_output or None)
        for index in range(count)
    ]
    if port and port + count - 1 > 65535:
        raise click.BadParameter(f"{count} ports from {port} on pass 65535", param_hint="--port")

    def ready(urls: list[str]) -> None:
        for url in urls:
            click.echo(f"{model} ({profile}) at {url}")
        sys.stdout.flush()
        if ready_file is not None:
            try:
                write_ready_file(ready_file, urls)
            except OSError as error:
                raise click.ClickException(f"--ready-file {ready_file}: {error.strerror}") from None

    try:
        uvloop.run(serve_until_signal(characters, Place(host, port, keep_alive, shutdown_timeout), ready))
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host}, port {port} and following: {error.strerror or error}"
        ) from None
