"""The price of `scheduling/price.py` taken apart, for decision records and metrics: a row's terms sum to its price.

Not on the hot path: prices themselves are worked out in one go.
"""

from isochrone.nouns.instant import Instant
from isochrone.scheduling.price import IMPOSED_PLAIN, IMPOSED_SHEDDABLE, Ask, Row


def equal_cost_terms(ask: Ask, row: Row, position: int, now: Instant) -> dict[str, float]:
    """Seconds by term, on one row."""
    rare = row.rare
    n, factor = ask.prompt_tokens, row.factor / rare.tries
    u = n - (ask.hits[position] if ask.hits is not None else 0)
    work = factor * u * (row.token_s + row.pair_s * (n - 0.5 * u))
    output = factor * ask.output_tokens
    waiting = row.waiting if rare.imposes else 0
    batch = row.batch if rare.imposes else 0
    if ask.sheddable:
        decoding = IMPOSED_SHEDDABLE * batch + ask.ttft_slo_s * row.slack_per_s
        later = row.sheddable - rare.money - 1.0 - waiting - IMPOSED_SHEDDABLE * batch
    else:
        decoding = IMPOSED_PLAIN * batch
        later = row.plain - rare.money - 1.0 - waiting - IMPOSED_PLAIN * batch
    share_s = row.step_s / (row.batch + 1)
    terms = {
        "pending_prefill": row.pending_s * row.share + row.share * max(0, row.head_due - now) * 1e-9,
        "slot_wait": row.slot_wait_s * row.share,
        "own_prefill": work,
        "own_decode": output * row.gap_s,
        "imposed_on_steps": output * (row.crowd_s - rare.money * share_s - row.gap_s + row.crowd_kv_s * n),
        "imposed_on_waiting": work * waiting,
        "imposed_on_decoding": work * decoding,
        "imposed_on_later": work * later,
        "kv_pressure": row.kv_price_s,
    }
    if rare.money:
        terms["money"] = rare.money * (work + output * share_s)
    if rare.tries != 1.0:
        fixed = terms["pending_prefill"] + terms["slot_wait"] + terms["kv_pressure"]
        terms["doing_it_again"] = (rare.tries - 1.0) * (sum(terms.values()) - fixed)
    return terms


def cold_terms(ask: Ask, row: Row, position: int, now: Instant) -> dict[str, float]:
    """The same of the cold price."""
    u = ask.prompt_tokens - (ask.hits[position] if ask.hits is not None else 0)
    pending = row.pending_s * row.share + row.share * max(0, row.head_due - now) * 1e-9
    return {
        "pending_prefill": pending,
        "pending_decode": row.cold_s - row.pending_s * row.share - row.kv_price_s,
        "own_prefill": u * row.token_s,
        "kv_pressure": row.kv_price_s,
    }
