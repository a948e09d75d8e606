"""The other routes: models, health, tokenizer, metrics."""

from collections.abc import Callable

import msgspec

from isochrone.emulator.body import Refused, chat_tokens, check_model, decode_detokenize, decode_tokenize
from isochrone.emulator.instance import Instance
from isochrone.emulator.metrics import Page
from isochrone.emulator.tokenizer import decode, decode_one, encode

VLLM_VERSION = "0.32.0"
"""The version whose API and metric names are emulated."""
JSON = "application/json"

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    503: "Service Unavailable",
}


def response(status: int, payload: bytes, content_type: str = JSON, close: bool = False) -> bytes:
    """A whole HTTP answer."""
    reason = REASONS.get(status, "")
    connection = "connection: close\r\n" if close else ""
    length = f"content-length: {len(payload)}\r\n"
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{connection}{length}\r\n"
    return head.encode() + payload


def health(instance: Instance, body: bytes) -> bytes:
    return response(200, b"")


def version(instance: Instance, body: bytes) -> bytes:
    return response(200, msgspec.json.encode({"version": VLLM_VERSION}))


def models(instance: Instance, body: bytes) -> bytes:
    character = instance.character
    card = {
        "id": character.model,
        "object": "model",
        "created": int(instance.started_at_unix_s),
        "owned_by": "vllm",
        "root": character.model,
        "parent": None,
        "max_model_len": character.context_tokens,
    }
    return response(200, msgspec.json.encode({"object": "list", "data": [card]}))


def tokenize(instance: Instance, body: bytes) -> bytes:
    asked = decode_tokenize(body)
    check_model(asked.model, instance.character.model)
    if asked.messages is not None:
        ids = chat_tokens(asked.messages, asked.tools, asked.add_generation_prompt, asked.continue_final_message)
    elif asked.prompt is not None:
        ids = encode(asked.prompt)
    else:
        raise Refused(400, "Give prompt or messages.", "prompt")
    strings = [decode_one(token) for token in ids] if asked.return_token_strs else None
    answer = {
        "count": len(ids),
        "max_model_len": instance.character.context_tokens,
        "tokens": ids,
        "token_strs": strings,
    }
    return response(200, msgspec.json.encode(answer))


def detokenize(instance: Instance, body: bytes) -> bytes:
    asked = decode_detokenize(body)
    check_model(asked.model, instance.character.model)
    try:
        text = decode(asked.tokens)
    except ValueError as error:
        raise Refused(400, f"{error}.", "tokens") from None
    return response(200, msgspec.json.encode({"prompt": text}))


def metrics(instance: Instance, body: bytes) -> bytes:
    page = Page(instance.character.model)
    _engine_gauges(page, instance)
    _engine_counters(page, instance)
    _histograms(page, instance)
    page.bare("process_start_time_seconds", "gauge", "Start of the instance, unix time.", instance.started_at_unix_s)
    counted = instance.metrics
    page.histogram("isochrone_emulator_lag_seconds", "How late a step's tokens were written.", counted.lag_s)
    page.single(
        "isochrone_emulator_lag_dropped_seconds",
        "counter",
        "Time given up because the process could not keep pace; above 0 its timing is not to be trusted.",
        counted.lag_dropped_s,
    )
    return response(200, page.text(), "text/plain; version=0.0.4; charset=utf-8")


def _engine_gauges(page: Page, instance: Instance) -> None:
    scheduler = instance.engine.scheduler
    profile = instance.character.profile
    waiting = len(scheduler.waiting)
    page.single("vllm:num_requests_running", "gauge", "Sequences in the batch.", len(scheduler.running))
    page.single("vllm:num_requests_waiting", "gauge", "Sequences waiting to be processed.", waiting)
    page.family("vllm:num_requests_waiting_by_reason", "gauge", "Sequences waiting, by reason.")
    page.sample("vllm:num_requests_waiting_by_reason", waiting, 'reason="capacity"')
    page.sample("vllm:num_requests_waiting_by_reason", 0, 'reason="deferred"')
    usage = scheduler.pool.used / scheduler.pool.total
    page.single("vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1.", usage)
    size_bytes = scheduler.pool.total * profile.block_tokens * profile.kv_bytes_per_token
    info = {
        "block_size": profile.block_tokens,
        "enable_prefix_caching": True,
        "kv_cache_memory_bytes": size_bytes,
        "kv_cache_size_tokens": scheduler.pool.total * profile.block_tokens,
        "num_gpu_blocks": scheduler.pool.total,
    }
    page.family("vllm:cache_config_info", "gauge", "Settings of the KV cache.")
    page.sample("vllm:cache_config_info", 1, ",".join(f'{name}="{value}"' for name, value in info.items()))


def _engine_counters(page: Page, instance: Instance) -> None:
    counted, scheduler = instance.metrics, instance.engine.scheduler
    for name, about, value in (
        ("prefix_cache_queries", "Tokens looked up in the prefix cache.", scheduler.prefix_query_tokens),
        ("prefix_cache_hits", "Tokens found in the prefix cache.", scheduler.prefix_hit_tokens),
        ("num_preemptions", "Sequences that lost their blocks.", scheduler.preemptions),
        ("prompt_tokens", "Prompt tokens processed.", counted.prompt_tokens),
        ("prompt_tokens_cached", "Prompt tokens found in the prefix cache.", counted.prompt_tokens_cached),
        ("generation_tokens", "Tokens generated.", counted.generation_tokens),
    ):
        page.single(f"vllm:{name}", "counter", about, value)
    by_source = "vllm:prompt_tokens_by_source_total"
    page.family(by_source, "counter", "Prompt tokens by where their KV came from.")
    page.sample(by_source, counted.prompt_tokens_computed, 'source="local_compute"')
    page.sample(by_source, counted.prompt_tokens_cached, 'source="local_cache_hit"')
    page.family("vllm:request_success_total", "counter", "Sequences that ended, by reason.")
    for reason, count in counted.finished.items():
        page.sample("vllm:request_success_total", count, f'finished_reason="{reason}"')


def _histograms(page: Page, instance: Instance) -> None:
    counted = instance.metrics
    for name, about, histogram in (
        (
            "iteration_tokens_total",
            "Tokens of a step, a prompt counted whole in the step of its first token.",
            counted.step_tokens,
        ),
        ("time_to_first_token_seconds", "Arrival at the engine to first token.", counted.first_token_s),
        ("inter_token_latency_seconds", "Gaps between tokens.", counted.gap_s),
        ("request_time_per_output_token_seconds", "Mean gap of a request.", counted.time_per_token_s),
        ("e2e_request_latency_seconds", "Arrival to last token.", counted.whole_s),
        ("request_queue_time_seconds", "Arrival to first step.", counted.queue_s),
        ("request_inference_time_seconds", "First step to last token.", counted.inference_s),
        ("request_prefill_time_seconds", "First step to first token.", counted.prefill_s),
        ("request_decode_time_seconds", "First token to last token.", counted.decode_s),
        ("request_prompt_tokens", "Prompt tokens of a request.", counted.request_prompt_tokens),
        ("request_generation_tokens", "Generated tokens of a request.", counted.request_generation_tokens),
    ):
        page.histogram(f"vllm:{name}", about, histogram)


PAGES: dict[tuple[str, str], Callable[[Instance, bytes], bytes]] = {
    ("GET", "/health"): health,
    ("GET", "/ping"): health,
    ("POST", "/ping"): health,
    ("GET", "/version"): version,
    ("GET", "/v1/models"): models,
    ("GET", "/metrics"): metrics,
    ("POST", "/tokenize"): tokenize,
    ("POST", "/detokenize"): detokenize,
}
