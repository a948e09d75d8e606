"""vLLM's metrics, in the names of 0.6 to 0.32 (newest first; each rename is noted where it was made).

Labels: `model_name` everywhere, `engine` (data parallel rank) in the V1 engine. Sources: vllm/v1/metrics/loggers.py
and vllm/engine/metrics.py of the versions named.
"""

import re
from collections.abc import Sequence

from isochrone.adapters.engine.exposition import Sample, samples
from isochrone.adapters.engine.fold import Reader, mean, total
from isochrone.nouns.instance import Snapshot

PREFIX = b"\nvllm:"
INJECTS = frozenset({"stream_options.include_usage"})
"""Request fields that this engine knows and that the gateway may add."""

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # renamed in 0.10
CACHE_CONFIG = "vllm:cache_config_info"
PREFIX_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")  # renamed in 0.10; tokens
PREFIX_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
PROMPT_TOKENS = ("vllm:prompt_tokens_total",)
GENERATION_TOKENS = ("vllm:generation_tokens_total",)
PREEMPTIONS = ("vllm:num_preemptions_total",)
ITERATIONS = ("vllm:iteration_tokens_total_count",)
ITERATION_TOKENS = ("vllm:iteration_tokens_total_sum",)
STARTED = "process_start_time_seconds"

_SIZES = re.compile(rb'[{,](block_size|num_gpu_blocks|kv_cache_size_tokens)="(\d+)"')


def decode(text: bytes) -> Snapshot:
    """One scrape (as `exposition.check` returns it) as numbers."""
    read = Reader(text)
    block_tokens, capacity_tokens = _cache(read.samples(CACHE_CONFIG))
    started = samples(text, STARTED)
    return Snapshot(
        engine="vllm",
        running=read.count(total, *RUNNING),
        waiting=read.count(total, *WAITING),
        kv_usage_ratio=read.ratio(*KV_USAGE),
        kv_capacity_tokens=capacity_tokens,
        block_tokens=block_tokens,
        prefix_query_tokens=read.number(total, *PREFIX_QUERIES),
        prefix_hit_tokens=read.number(total, *PREFIX_HITS),
        prompt_tokens=read.number(total, *PROMPT_TOKENS),
        generation_tokens=read.number(total, *GENERATION_TOKENS),
        preemptions=read.number(total, *PREEMPTIONS),
        iterations=read.number(total, *ITERATIONS),
        iteration_tokens=read.number(total, *ITERATION_TOKENS),
        started_at_unix_s=mean(started) if started else None,
        missing=tuple(read.missing),
    )


def _cache(found: Sequence[Sample]) -> tuple[int | None, int | None]:
    """(tokens a block, tokens of KV cache over all ranks) out of the labels of the cache's configuration.

    0.32 states the size in tokens; before, it is blocks times block size. A size that is not yet known reads `None`.
    """
    block_tokens: int | None = None
    capacity = 0
    for sample in found:
        sizes = {name: int(value) for name, value in _SIZES.findall(b"{" + sample.labels)}
        block_tokens = sizes.get(b"block_size", block_tokens)
        blocks = sizes.get(b"num_gpu_blocks", 0)
        capacity += sizes.get(b"kv_cache_size_tokens") or blocks * sizes.get(b"block_size", 0)
    return block_tokens, capacity or None
