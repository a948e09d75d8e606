"""Keys of the configuration file that are limits, intervals and prices.

Defaults come from where the values are used (`Settings`, `RelayLimits`), so that each is written down once.
"""

from isochrone.config.driver import RelayLimits
from isochrone.config.fields import Group, entry
from isochrone.nouns.settings import Settings

CORE = Settings()
RELAY = RelayLimits()


class WorkersGroup(Group):
    """Processes that share the work."""

    count: int = entry(1, "processes", "Relay processes; with 1 there is one process in all.", ge=1, le=64)
    brain_wait_s_max: float = entry(
        5.0, "s", "Longest wait of a request while the process that decides is started anew; then 503.", gt=0
    )
    hung_s_max: float = entry(
        15.0, "s", "A process whose event loop stands still for so long is ended and started again.", ge=2
    )


class QueueGroup(Group):
    """Requests held in the gateway."""

    requests_max: int = entry(CORE.queue_requests_max, "requests", "Held requests; one more is refused with 503.", ge=0)
    wait_s_max: float = entry(CORE.queue_wait_s_max, "s", "Longest hold; then 503.", gt=0)


class RetryGroup(Group):
    """Attempts that failed before their first byte."""

    attempts_max: int = entry(CORE.attempts_max, "attempts", "Dispatches of one request, the first included.", ge=1)
    ratio: float = entry(
        CORE.retry_ratio, "ratio", "Retry budget: retried prompt tokens as a share of dispatched ones.", ge=0, le=1
    )
    tokens_per_s: float = entry(CORE.retry_tokens_per_s, "tokens/s", "Retry budget: plus this much.", ge=0)
    tokens_max: float = entry(CORE.retry_tokens_max, "tokens", "Retry budget: saved up to this much.", ge=0)
    hedge_ratio: float = entry(
        CORE.hedge_ratio,
        "ratio",
        "Share of requests for which a second instance may be asked when the first is late; 0: never.",
        ge=0,
        le=0.5,
    )


class HeartbeatGroup(Group):
    """Is an instance alive."""

    interval_s: float = entry(CORE.heartbeat_interval_s, "s", "Between two heartbeats of one instance.", gt=0)
    timeout_s: float = entry(CORE.heartbeat_timeout_s, "s", "A heartbeat without an answer is a miss after this.", gt=0)
    suspect_misses: int = entry(CORE.heartbeat_suspect_misses, "misses", "Misses in a row: suspect.", ge=1)
    eject_misses: int = entry(CORE.heartbeat_eject_misses, "misses", "Misses in a row: ejected.", ge=1)
    ready_answers: int = entry(CORE.heartbeat_ready_answers, "answers", "Good answers in a row: ready again.", ge=1)
    failures_suspect: int = entry(CORE.failures_suspect, "attempts", "Failed attempts in a row: suspect.", ge=1)
    failures_eject: int = entry(CORE.failures_eject, "attempts", "Failed attempts in a row: ejected.", ge=1)


class ScrapeGroup(Group):
    """Reading an instance's own metrics and models."""

    interval_s: float = entry(CORE.scrape_interval_s, "s", "Between two scrapes of one instance.", gt=0)
    timeout_s: float = entry(5.0, "s", "A scrape without an answer is given up after this.", gt=0)
    age_s_max: float = entry(CORE.scrape_age_s_max, "s", "Scraped values older than this count as unknown.", gt=0)
    backoff_s_max: float = entry(30.0, "s", "Longest pause between scrapes of an engine that has no /metrics.", gt=0)
    models_interval_s: float = entry(30.0, "s", "Between two readings of `/v1/models` of one instance.", gt=0)


class DeadlinesGroup(Group):
    """Longest waits for an engine."""

    connect_s: float = entry(CORE.connect_s, "s", "To connect to an instance.", gt=0)
    first_token_s: float | None = entry(
        CORE.first_token_s, "s", "From dispatch to the first output of a stream; null: no limit.", gt=0
    )
    gap_s: float | None = entry(CORE.gap_s, "s", "Between two pieces of output; null: no limit.", gt=0)
    whole_s: float | None = entry(CORE.whole_s, "s", "From dispatch to the end of the answer; null: no limit.", gt=0)
    silence_s: float | None = entry(
        CORE.silence_s,
        "s",
        "No sign of work for so long beyond what its work explains: an instance hangs; null: only the limits above.",
        gt=0,
    )
    drain_move_s: float = entry(
        CORE.drain_move_s, "s", "Streams still running on a draining instance after this are moved.", ge=0
    )
    drain_s_max: float = entry(CORE.drain_s_max, "s", "SIGTERM: longest wait for running requests.", ge=0)


class LimitsGroup(Group):
    """Bounds of the data path."""

    head_bytes_max: int = entry(RELAY.head_bytes_max, "bytes", "Request line and headers; more is 431.", ge=1024)
    headers_max: int = entry(RELAY.headers_max, "headers", "Header lines of a request; more is 431.", ge=8)
    body_bytes_max: int = entry(RELAY.body_bytes_max, "bytes", "Body of a request; more is 413.", ge=1)
    head_s_max: float = entry(RELAY.head_s_max, "s", "From a request's first byte to the end of its head.", gt=0)
    body_s_max: float = entry(RELAY.body_s_max, "s", "From the end of the head to the end of the body.", gt=0)
    idle_s_max: float = entry(RELAY.idle_s_max, "s", "A client's connection without a request is closed.", gt=0)
    connections_max: int = entry(RELAY.connections_max, "connections", "Open client connections.", ge=1)
    pipelined_max: int = entry(RELAY.pipelined_max, "requests", "Requests read ahead on one connection.", ge=1)
    upstream_connections_max: int = entry(
        RELAY.upstream_connections_max, "connections", "Open connections to one instance.", ge=1
    )
    resolve_s: float = entry(
        RELAY.resolve_s, "s", "Addresses of an instance's name older than this are looked up again.", ge=0
    )
    upstream_idle_s_max: float = entry(
        RELAY.upstream_idle_s_max, "s", "An idle connection to an instance is closed (vLLM closes after 5 s).", gt=0
    )
    answer_head_bytes_max: int = entry(
        RELAY.answer_head_bytes_max, "bytes", "Status line and headers of an engine's answer.", ge=1024
    )
    held_answer_bytes_max: int = entry(
        RELAY.held_answer_bytes_max, "bytes", "An engine's error kept while another instance is tried.", ge=1024
    )
    client_buffer_bytes_max: int = entry(
        RELAY.client_buffer_bytes_max, "bytes", "Not yet taken by a client; above it the engine is not read.", ge=4096
    )
    client_write_s_max: float = entry(
        RELAY.client_write_s_max, "s", "A client with a full buffer that takes nothing for so long is cut.", gt=0
    )
    keep_alive_s: float | None = entry(
        RELAY.keep_alive_s, "s", "A stream that is silent for so long gets an SSE comment; null: never.", gt=0
    )
    whole_answer_bytes_max: int = entry(
        RELAY.whole_answer_bytes_max, "bytes", "A non-streamed answer up to this is passed on in one piece.", ge=0
    )
    bodies_bytes_max: int = entry(
        RELAY.bodies_bytes_max, "bytes", "Bodies of all clients held at once; above it 503.", ge=1
    )
    resume_bytes_max: int = entry(
        RELAY.resume_bytes_max, "bytes", "Kept of all running streams so that they can be resumed.", ge=0
    )
    resume_stream_bytes_max: int = entry(
        RELAY.resume_stream_bytes_max, "bytes", "Kept of one stream; a longer one cannot be resumed.", ge=0
    )
    linger_s_max: float = entry(
        RELAY.linger_s_max, "s", "After an early refusal the rest of the request is read and dropped.", ge=0
    )
    sweep_s: float = entry(RELAY.sweep_s, "s", "How often limits in time are checked.", gt=0)
    decisions_max: int = entry(CORE.decisions_max, "decisions", "Decision records kept for /admin/decisions.", ge=1)
    prefix_blocks_max: int = entry(
        CORE.prefix_blocks_max, "blocks", "Prefix index: blocks of an instance whose KV size is unknown.", ge=1
    )
    log_lines_max: int = entry(
        10_000, "lines", "Access log lines not yet written; more are counted and left out.", ge=1
    )


class PricingGroup(Group):
    """Constants of the equal-cost price and of late binding."""

    chunk_tokens: int = entry(CORE.chunk_tokens, "tokens", "max_num_batched_tokens where not inferred.", ge=1)
    samples_warm: int = entry(CORE.samples_warm, "samples", "Needed before a pool prices, holds or sheds.", ge=1)
    hold_chunks: float = entry(CORE.hold_chunks, "chunks", "Pending prefill allowed on an instance.", gt=0)
    hold_chunks_sheddable: float = entry(CORE.hold_chunks_sheddable, "chunks", "The same for sheddable requests.", gt=0)
    hold_slack_s: float = entry(CORE.hold_slack_s, "s", "So much dearer is taken; more, the longer the wait.", ge=0)
    hold_slack_sheddable_s: float = entry(CORE.hold_slack_sheddable_s, "s", "The same for sheddable requests.", ge=0)
    work_price: float = entry(CORE.work_price, "s/s", "Price of a second of own prefill beyond itself.", ge=0)
    work_price_sheddable: float = entry(CORE.work_price_sheddable, "s/s", "The same for sheddable requests.", ge=0)
    kv_soft_ratio: float = entry(CORE.kv_soft_ratio, "ratio", "KV use above which a place costs more.", gt=0, le=1)
    kv_soft_price_s: float = entry(CORE.kv_soft_price_s, "s", "Price of KV use above that, times the excess.", ge=0)
    kv_hard_ratio: float = entry(CORE.kv_hard_ratio, "ratio", "KV use above which a place is closed.", gt=0, le=1)
    cap_ratio: float | None = entry(
        CORE.cap_ratio, "ratio", "Share of a TPOT target that a decode step may take; null: no cap.", gt=0, le=1
    )
    slow_start_s: float = entry(
        CORE.slow_start_s, "s", "A new instance's allowed pending prefill grows over this time.", ge=0
    )
    money_price_s: float = entry(
        CORE.money_price_s, "s", "What one unit of money is worth, for instances with `cost_per_hour`.", ge=0
    )
    slots_default: int | None = entry(
        CORE.slots_default, "requests", "max_num_seqs of instances that give none; null: inferred.", ge=1
    )
