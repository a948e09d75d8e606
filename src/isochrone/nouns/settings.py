"""The core's settings: a plain struct made from the configuration, with every limit and its default."""

import msgspec

from isochrone.nouns.request import Slo


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may change while the cluster runs. Units are in the names."""

    policy: str = "equal-cost"
    shadow: str | None = None
    """A second policy that decides and records, and never acts."""
    hold: bool = True
    """Late binding: keep requests in the gateway's queue until a good place is free."""

    without: frozenset[str] = frozenset()
    """Parts of the scheduler that are left out, by their names in `scheduling/parts.py`."""

    queue_requests_max: int = 1000
    """Held requests over all pools; one more is refused with 503."""
    queue_wait_s_max: float = 120.0
    """Longest hold; then 503."""

    attempts_max: int = 3
    """Dispatches of one request, the first included."""
    retry_ratio: float = 0.1
    """Retry budget: retried prompt tokens as a share of dispatched prompt tokens ..."""
    retry_tokens_per_s: float = 2000.0
    """... plus this much every second ..."""
    retry_tokens_max: float = 200_000.0
    """... saved up to this much."""
    hedge_ratio: float = 0.0
    """Share of requests for which a second instance may be asked: small prompts whose first token is late. 0: never."""

    resume: bool = True
    """Continue streams that lose their instance on another one, where that is possible."""
    drain_move_s: float = 60.0
    """A draining instance: streams that still run after this are moved to others, where that is possible."""

    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 5.0
    heartbeat_suspect_misses: int = 1
    heartbeat_eject_misses: int = 3
    heartbeat_ready_answers: int = 2
    """Good answers in a row that bring an ejected instance back."""
    failures_suspect: int = 2
    """Attempts in a row that the instance failed (not client errors, not 'busy')."""
    failures_eject: int = 5
    scrape_interval_s: float = 1.0
    scrape_age_s_max: float = 10.0
    """Scraped values older than this count as unknown."""

    chunk_tokens: int = 2048
    """max_num_batched_tokens of the engines where not inferred."""
    samples_warm: int = 50
    """Samples that a pool's step-time model needs before it prices, holds or sheds."""
    hold_chunks: float = 4.0
    """Late binding: pending prefill allowed on an instance, in chunks' time, for traffic that may not be shed."""
    hold_chunks_sheddable: float = 1.0
    hold_slack_s: float = 0.5
    """A place that costs at most this much more than the best one is taken rather than waited for; the more the longer
    the request has waited (`scheduling/queue.py`)."""
    hold_slack_sheddable_s: float = 2.0
    """The same for what may be shed: its price is several times its time, as it pays for the budgets of others."""
    work_price: float = 8.0
    """w_f: price of a second of own prefill work beyond itself."""
    work_price_sheddable: float = 3.0
    kv_soft_ratio: float = 0.95
    """KV use above which a place costs more: `kv_soft_price_s` times the share beyond it ..."""
    kv_soft_price_s: float = 20.0
    kv_hard_ratio: float = 0.97
    """... and above which a busy place is closed."""

    cap_ratio: float | None = None
    """Share of a TPOT target that a decode step may take before an instance is full; None: no cap."""
    slow_start_s: float = 30.0
    """A new instance's allowed pending prefill grows to the full amount over this time; 0: at once."""
    money_price_s: float = 0.0
    """Seconds that one unit of money is worth, where instances have a `cost_per_hour`; 0: money plays no part."""

    silence_s: float | None = 8.0
    """An instance that has work counts as hung when nothing shows that it does any, for so long beyond what its work
    explains; None: only by the limits below."""

    connect_s: float = 5.0
    first_token_s: float | None = 600.0
    """Streams only; None, here and below: no limit."""
    gap_s: float | None = 120.0
    whole_s: float | None = 3600.0
    drain_s_max: float = 60.0
    """SIGTERM: longest wait for running requests."""

    slo: Slo | None = None
    """For every request that has none of its own."""
    slo_by_tenant: dict[str, Slo] = {}
    slo_by_model: dict[str, Slo] = {}
    slo_by_route: dict[str, Slo] = {}
    slots_default: int | None = None
    """max_num_seqs for instances that give none; None: inferred."""
    prefix_blocks_max: int = 200_000
    """Prefix index: blocks remembered for one instance whose KV size is unknown."""
    decisions_max: int = 1000
    """Decision records kept for /admin/decisions."""
