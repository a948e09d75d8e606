"""SGLang's metrics (`--enable-metrics`), in the names of 0.4 to 0.5.

Labels: `model_name`, `tp_rank`, `pp_rank`, `dp_rank`, `priority`. All ranks of one tensor or pipeline parallel group
tell the same story, so that one of them counts; data parallel ranks add up; with priorities there is one row for each
and one with an empty label that holds their sum. Source: python/sglang/srt/metrics/collector.py.
"""

from collections.abc import Sequence

from isochrone.adapters.engine.exposition import Sample, samples
from isochrone.adapters.engine.fold import Reader, mean
from isochrone.nouns.instance import Snapshot

PREFIX = b"\nsglang:"
INJECTS = frozenset({"stream_options.include_usage"})
"""Request fields that this engine knows and that the gateway may add."""

RUNNING = ("sglang:num_running_reqs",)
WAITING = ("sglang:num_queue_reqs",)
KV_USAGE = ("sglang:token_usage",)
CAPACITY = ("sglang:max_total_num_tokens",)
PAGE_SIZE = ("sglang:page_size",)  # from 0.5.11 on; before, a label of cache_config_info
CACHE_CONFIG = "sglang:cache_config_info"
PROMPT_TOKENS = ("sglang:prompt_tokens_total",)
CACHED_TOKENS = ("sglang:cached_tokens_total",)
GENERATION_TOKENS = ("sglang:generation_tokens_total",)
RETRACTIONS = ("sglang:num_retracted_requests_total",)
STARTED = "process_start_time_seconds"


def over_ranks(found: Sequence[Sample]) -> float:
    """Sum over data parallel ranks and models, one sample for each tensor and pipeline parallel group."""
    if len(found) == 1:
        return found[0].value
    rows = [(sample.label_values(), sample.value) for sample in found]
    if any(labels.get("priority") == "" for labels, _ in rows):
        rows = [(labels, value) for labels, value in rows if labels.get("priority") == ""]
    groups: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in rows:
        group = tuple(sorted((name, text) for name, text in labels.items() if name not in ("tp_rank", "pp_rank")))
        groups[group] = max(value, groups.get(group, 0.0))
    return sum(groups.values())


def over_sources(found: Sequence[Sample]) -> float:
    """Cached tokens over all places they came from; a row of the total, where there is one, says it already."""
    totals = [sample for sample in found if b'cache_source="total"' in sample.labels]
    return over_ranks(totals or found)


def decode(text: bytes) -> Snapshot:
    """One scrape (as `exposition.check` returns it) as numbers."""
    read = Reader(text)
    started = samples(text, STARTED)
    prompt_tokens = read.number(over_ranks, *PROMPT_TOKENS)
    return Snapshot(
        engine="sglang",
        running=read.count(over_ranks, *RUNNING),
        waiting=read.count(over_ranks, *WAITING),
        kv_usage_ratio=read.ratio(*KV_USAGE),
        kv_capacity_tokens=read.count(over_ranks, *CAPACITY),
        block_tokens=_page_tokens(text, read),
        prefix_query_tokens=prompt_tokens,
        prefix_hit_tokens=read.number(over_sources, *CACHED_TOKENS),
        prompt_tokens=prompt_tokens,
        generation_tokens=read.number(over_ranks, *GENERATION_TOKENS),
        preemptions=read.number(over_ranks, *RETRACTIONS),
        started_at_unix_s=mean(started) if started else None,
        missing=tuple(read.missing),
    )


def _page_tokens(text: bytes, read: Reader) -> int | None:
    """Tokens a page: a gauge in newer versions, a label in older ones."""
    for sample in samples(text, CACHE_CONFIG):
        size = sample.label_values().get("page_size", "")
        if size.isdigit():
            return int(size)
    pages = read.samples(*PAGE_SIZE)
    return round(pages[0].value) if pages else None
