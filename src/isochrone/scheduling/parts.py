"""The parts of the scheduler that can be left out, each by its name: for ablations, and for whoever trusts one less.

`Settings.without` holds names from here; `effective` turns as many of them as it can into plain settings, once, so that
the hot path asks no more than it does anyway.
"""

import msgspec

from isochrone.nouns.settings import Settings

PARTS: dict[str, str] = {
    "hold": "late binding: requests are dispatched at once",
    "order": "the queue's key: first come, first served within a priority",
    "fairness": "tenants' counters: the queue does not look at whose a request is",
    "shed": "refusing what can no longer meet its TTFT objective",
    "in-time": "not sending a request that may be shed where its first token would come too late",
    "cap": "the concurrency cap from the TPOT target (where one is set)",
    "reservation": "emptying an instance for a prompt that fits nowhere else",
    "slow-start": "the ramp of pending prefill on new instances",
    "imposed": "the price of delaying others: waiting, decoding, and their steps",
    "work-price": "the price of own work beyond itself, which a full pool pays for later",
    "kv-price": "the soft price near full KV memory",
    "kv-limit": "the hard limit of KV memory, and the room that a prompt must find below it",
    "error-price": "the expected cost of doing it again where attempts have failed lately",
    "slowness": "levels of instances: each counts as its class",
    "own-class": "classes of their own for instances that differ for long",
    "steps": "learnt step times and levels: each class keeps what it began with, a warm start's or the prior",
    "lengths": "learnt output lengths: every answer is expected to be as long as the prior's mean",
    "prefix": "the prefix index: no instance is taken to hold any prompt",
}
"""Name -> what is left out."""


def effective(settings: Settings) -> Settings:
    """The settings with parts that are governed by a number set to where they do nothing."""
    without = settings.without
    if not without:
        return settings
    changes: dict[str, object] = {}
    if "hold" in without:
        changes["hold"] = False
    if "work-price" in without:
        changes["work_price"] = changes["work_price_sheddable"] = 0.0
    if "kv-price" in without:
        changes["kv_soft_price_s"] = 0.0
    if "kv-limit" in without:
        changes["kv_hard_ratio"] = float("inf")
    if "cap" in without:
        changes["cap_ratio"] = None
    return msgspec.structs.replace(settings, **changes)
