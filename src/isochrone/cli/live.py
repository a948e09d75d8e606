"""A simulator's workload over real HTTP: the same calls at the same times, against an engine or a gateway."""

import random
from urllib.parse import urlsplit

import msgspec
import numpy as np

from isochrone.loadgen.calls import Call as Sent
from isochrone.loadgen.calls import Result
from isochrone.loadgen.client import Client
from isochrone.loadgen.drive import replay
from isochrone.loadgen.lag import LagWatch
from isochrone.loadgen.workload import Turn
from isochrone.loadgen.workload import Workload as Load
from isochrone.simulator.belief.alone import Served
from isochrone.simulator.workload import Call, Workload

PATH = "/v1/completions"
IDS = range(10, 250)
"""Token ids that prompts are made of: any vocabulary has them, and they are no special tokens."""
WHOLE_S = 300.0
LAG_S_MAX = 0.020
"""Lateness of this process's event loop at p99 beyond which latencies say more about this machine."""


class Unusable(Exception):
    """The measurement cannot be used; the text says why."""


def as_load(workload: Workload, model: str, salt: str = "") -> Load:
    """The calls as HTTP requests. Prompts are token ids, so that their length is exact and blocks are shared.

    Another salt gives other prompts of the same lengths: a second run finds nothing of the first in a cache.
    """
    blocks: dict[int, list[int]] = {}
    sessions = []
    for number, call in enumerate(workload.calls):
        body = {
            "model": model,
            "prompt": _prompt(call, f"{salt} {number}", workload.block_tokens, blocks),
            "max_tokens": call.output_tokens,
            "min_tokens": call.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sessions.append((Turn(call.at / 1e9, 0.0, Sent(PATH, msgspec.json.encode(body), route=call.route), True),))
    return Load(tuple(sessions), 0.0, workload.seconds)


def _prompt(call: Call, own: str, block_tokens: int, blocks: dict[int, list[int]]) -> list[int]:
    tokens: list[int] = []
    for block in call.ids:
        if block not in blocks:
            blocks[block] = random.Random(f"block {block}").choices(IDS, k=block_tokens)
        tokens += blocks[block]
    return tokens + random.Random(f"own {own}").choices(IDS, k=call.prompt_tokens - len(tokens))


async def measure(url: str, workload: Workload, model: str, salt: str = "", lag_s_max: float = LAG_S_MAX) -> Served:
    """Latencies from when each call was due, in order of the workload."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise Unusable(f"{url!r}: expected http://HOST:PORT")
    load, lag = as_load(workload, model, salt), LagWatch()
    async with Client(parts.hostname, parts.port or 80, whole_s=WHOLE_S) as client:
        lag.start()
        try:
            results = await replay(client, load)
        finally:
            lag.stop()
    if lag.p99_s > lag_s_max:
        raise Unusable(
            f"this machine is too busy to judge: the client's event loop ran {lag.p99_s * 1e3:.0f} ms late at p99, the "
            f"limit is {lag_s_max * 1e3:.0f} ms"
        )
    return served(results, workload)


def served(results: list[Result], workload: Workload) -> Served:
    """As columns. Every call must have been answered whole, with as many tokens as it was to have."""
    failed = [result for result in results if not result.served]
    if failed:
        first = failed[0]
        raise Unusable(f"{len(failed)} of {len(results)} calls failed: {first.error or 'status'} {first.status}")
    wanted = [call.output_tokens for call in workload.calls]
    if [result.tokens for result in results] != wanted:
        raise Unusable("answers are not as long as they were asked to be: the engine heeds no min_tokens")
    ttft, e2e = [], []
    for result in results:
        assert result.first_token_at is not None
        assert result.last_token_at is not None
        ttft.append(result.first_token_at - result.intended_at)
        e2e.append(result.last_token_at - result.intended_at)
    return Served(np.array(ttft), np.array(e2e), np.array(wanted))
