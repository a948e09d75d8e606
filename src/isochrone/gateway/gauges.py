"""Metrics that are read off when asked for: instances, queues, heartbeats and scrapes, the process itself."""

import platform
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from isochrone import __version__
from isochrone.access.quotas import Account
from isochrone.cluster.view import InstanceView, QueueView
from isochrone.gateway.accesslog import AccessLog
from isochrone.gateway.app import Gateway
from isochrone.gateway.watch import Watched
from isochrone.nouns.instance import State
from isochrone.observe.families import Family, Row
from isochrone.observe.usage import TENANTS_MAX

_INSTANCE: tuple[tuple[str, str, Callable[[InstanceView], float | None]], ...] = (
    ("isochrone_instance_weight", "Share of work relative to its peers; 0: takes nothing new.", lambda v: v.weight),
    ("isochrone_instance_slots", "max_num_seqs, configured or inferred.", lambda v: v.slots),
    ("isochrone_instance_in_flight_requests", "Our attempts on the instance.", lambda v: v.in_flight),
    ("isochrone_instance_prefill_requests", "Our attempts on it before their first token.", lambda v: v.waiting),
    ("isochrone_instance_decode_requests", "Our attempts on it past their first token.", lambda v: v.decoding),
    ("isochrone_instance_foreign_requests", "Requests on it that are not ours.", lambda v: v.foreign_running),
    ("isochrone_instance_pending_prefill_seconds", "Prefill work on it not yet done.", lambda v: v.pending_prefill_s),
    (
        "isochrone_instance_pending_prefill_tokens",
        "Prefill work on it not yet done, in tokens.",
        lambda v: v.pending_prefill_tokens,
    ),
    ("isochrone_instance_owed_output_tokens", "Output expected of running attempts.", lambda v: v.owed_output_tokens),
    ("isochrone_instance_kv_usage_ratio", "KV cache in use, 0 to 1.", lambda v: v.kv_usage_ratio),
    ("isochrone_instance_kv_capacity_tokens", "KV cache size.", lambda v: v.kv_capacity_tokens),
    ("isochrone_instance_engine_running_requests", "Running, by its last scrape.", lambda v: v.engine_running),
    ("isochrone_instance_engine_waiting_requests", "Waiting, by its last scrape.", lambda v: v.engine_waiting),
    ("isochrone_instance_scrape_age_seconds", "Since its last good scrape.", lambda v: v.scrape_age_s),
    ("isochrone_instance_missing_metrics", "Metric names looked for and not found.", lambda v: len(v.missing)),
    ("isochrone_instance_level_ratio", "How much slower than its class; 1: as its class.", lambda v: v.level_factor),
    ("isochrone_instance_slow", "1 while its level is believed and counts against it.", lambda v: v.slow),
    (
        "isochrone_instance_class_shift_ratio",
        "Step time of its class over what it was some minutes ago; above 1.15 look at the class, not at one instance.",
        lambda v: v.class_shift_ratio,
    ),
    ("isochrone_instance_failure_ratio", "Share of attempts that failed lately.", lambda v: v.failure_ratio),
    ("isochrone_instance_step_samples", "Samples behind its step-time model.", lambda v: v.step_samples),
    (
        "isochrone_instance_prefix_bytes",
        "Prompt text that its prefix cache is taken to hold.",
        lambda v: v.prefix_bytes,
    ),
)
_QUEUE: tuple[tuple[str, str, Callable[[QueueView], float]], ...] = (
    ("isochrone_queue_requests", "Requests held in the gateway now.", lambda v: v.depth),
    ("isochrone_queue_oldest_seconds", "How long the oldest held request has waited.", lambda v: v.oldest_s),
    ("isochrone_model_instances", "Instances that take requests for the model.", lambda v: v.members),
    ("isochrone_model_known_instances", "Instances that serve the model, in any state.", lambda v: v.known),
    (
        "isochrone_model_in_doubt",
        "1 while no instance is well, and those that may only be busy take requests.",
        lambda v: v.in_doubt,
    ),
    ("isochrone_model_warm", "1 once enough step times were learnt to price and hold.", lambda v: v.warm),
)


def instance_gauges(views: Sequence[InstanceView]) -> list[Family]:
    """Gauges of each instance. What is unknown has no row: it is not zero."""
    found = []
    for name, text, value_of in _INSTANCE:
        rows: list[Row] = [((view.id,), value) for view in views if (value := value_of(view)) is not None]
        found.append(Family(name, "gauge", text, ("instance",), rows))
    states: list[Row] = [((view.id, state.value), float(view.state == state)) for view in views for state in State]
    found.append(
        Family("isochrone_instance_state", "gauge", "1 for the state that it is in.", ("instance", "state"), states)
    )
    hangs: list[Row] = [((view.id,), view.hangs) for view in views]
    text = "How often it had work and showed no sign of doing any."
    found.append(Family("isochrone_instance_hangs_total", "counter", text, ("instance",), hangs))
    labels = ("instance", "url", "engine", "device_class", "role")
    known: list[Row] = [((view.id, view.url, view.engine, view.device_class, view.role), 1.0) for view in views]
    found.append(Family("isochrone_instance_info", "gauge", "What the instance is; always 1.", labels, known))
    return found


def queue_gauges(views: Sequence[QueueView]) -> list[Family]:
    """Gauges of each model's queue."""
    return [
        Family(name, "gauge", text, ("model",), [((view.model,), float(value_of(view))) for view in views])
        for name, text, value_of in _QUEUE
    ]


def asking_counters(watched: Iterable[tuple[str, Watched]]) -> list[Family]:
    """Heartbeats and scrapes by how they ended."""
    beats: list[Row] = []
    scrapes: list[Row] = []
    for instance, loops in watched:
        beats += [((instance, verdict.value), count) for verdict, count in loops.heart.verdicts.items()]
        scrapes += [((instance, result), count) for result, count in loops.scraper.results.items()]
    return [
        Family("isochrone_heartbeats_total", "counter", "Heartbeats by answer.", ("instance", "verdict"), beats),
        Family("isochrone_scrapes_total", "counter", "Scrapes by how they ended.", ("instance", "result"), scrapes),
    ]


def build_info(policy: str, shadow: str | None) -> list[Family]:
    """What runs here."""
    labels = ("version", "python", "policy", "shadow")
    row = (__version__, platform.python_version(), policy, shadow or "")
    return [Family("isochrone_build_info", "gauge", "What runs here; always 1.", labels, [(row, 1.0)])]


def tenant_gauges(accounts: Iterable[Account]) -> list[Family]:
    """What tenants have under way; those of the first TENANTS_MAX that have asked anything."""
    shown = list(islice(accounts, TENANTS_MAX))
    return [
        Family(
            "isochrone_tenant_running_requests",
            "gauge",
            "Requests of the tenant that are held or running.",
            ("tenant",),
            [((account.tenant.name,), account.running) for account in shown],
        ),
        Family(
            "isochrone_tenant_reserved_tokens",
            "gauge",
            "Tokens set aside for requests of the tenant that are held or running.",
            ("tenant",),
            [((account.tenant.name,), account.reserved_tokens) for account in shown],
        ),
    ]


LAG_SHARES = (0.5, 0.99, 1.0)
"""Quantiles of the event loop's lag that are shown."""


def process_gauges(gateway: Gateway, access_log: AccessLog | None) -> list[Family]:
    """The gateway's own process."""
    lag_s: list[Row] = [((f"{share:g}",), gateway.sweep.lag_s(share)) for share in LAG_SHARES]
    upstream: list[Row] = []
    for instance, pool in gateway.pools.items():
        upstream += [((instance, "idle"), pool.idle), ((instance, "busy"), pool.open - pool.idle)]
    left_out, written = (access_log.left_out, access_log.written) if access_log is not None else (0, 0)
    return [
        Family(
            "isochrone_event_loop_lag_seconds",
            "gauge",
            "How late the event loop ran its sweep over the last minute, by quantile.",
            ("quantile",),
            lag_s,
        ),
        _single("isochrone_open_requests", "gauge", "Requests being answered or held.", len(gateway.brain.requests)),
        _single("isochrone_client_connections", "gauge", "Open client connections.", len(gateway.connections)),
        _single(
            "isochrone_client_connections_refused_total",
            "counter",
            "Client connections turned away at connections_max or while draining.",
            gateway.connections_refused,
        ),
        Family(
            "isochrone_upstream_connections",
            "gauge",
            "Open connections to an instance.",
            ("instance", "state"),
            upstream,
        ),
        Family(
            "isochrone_early_refusals_total",
            "counter",
            "Requests refused before the core heard of them (malformed, no key, over a quota), by error code.",
            ("reason",),
            [((code,), count) for code, count in gateway.reception.refusals.items()],
        ),
        _single("isochrone_held_body_bytes", "gauge", "Request bodies in memory.", gateway.bodies.held_bytes),
        _single(
            "isochrone_held_resume_bytes",
            "gauge",
            "Prompt ids, texts and output ids in memory, so that running streams can be resumed.",
            gateway.kept.held_bytes,
        ),
        _single(
            "isochrone_streams_resumed_total",
            "counter",
            "Streams that went on on another instance, counted each time.",
            gateway.kept.resumed,
        ),
        _single(
            "isochrone_streams_forgotten_total",
            "counter",
            "Streams that can no longer be resumed because they would take too much memory.",
            gateway.kept.forgotten,
        ),
        _single("isochrone_draining", "gauge", "1 while the gateway drains.", float(gateway.draining)),
        _single("isochrone_faults_total", "counter", "Bugs of our own that were caught.", gateway.brain.faults),
        _single("isochrone_access_log_lines_total", "counter", "Access log lines written.", written),
        _single(
            "isochrone_access_log_left_out_total",
            "counter",
            "Access log lines that found no room, or no disk.",
            left_out,
        ),
    ]


def _single(name: str, kind: str, text: str, value: float) -> Family:
    return Family(name, kind, text, (), [((), value)])
