"""Whether an instance hangs: it has work, and nothing shows that it does any.

Four things show work: a token of any stream; a whole answer; a figure of its metrics that is not what it was one scrape
ago (steps, tokens, requests, KV use: vLLM tells them from its step loop, so that they stand still with it); and the
moment at which an idle instance got something to do. From the last of them on it is silent.

Silence alone is no fault. A prompt of 85,000 tokens keeps an engine busy for many seconds, one that does not cut
prompts into chunks gives nobody a token meanwhile, and a kernel that is compiled stops everything for some. So the step
model says how long the work that the instance has may take until the next sign, and that is allowed several times
over, with `silence_s` on top:

    patience = silence_s + level * (STEPS * a full step + PROMPTS * the longest waiting prompt, uncached and in one go)

A model that has hardly any samples explains nothing: then it is COLD_S at least. Answers that are not streamed give no
sign before their end, and metrics may not be answered at all, so what counts as evidence is asked case by case in
`is_evidence`.
"""

from math import ceil

from isochrone.instances.steptime import StepTimeModel
from isochrone.nouns.instance import Snapshot

STEPS = 4.0
PROMPTS = 2.0
"""How far off the step model may be: it is within 15 % on average, and a card that is suddenly throttled by 3 is slow,
not hung. Of a long prompt nothing is cached here, and engines that cut prompts into chunks show work at each."""
COLD_S = 45.0
"""Patience with an instance whose class has fewer than SAMPLES_MIN samples."""
SAMPLES_MIN = 20
STREAMS_MIN = 2
"""Without metrics, so many streams must be silent together: one may hold back its text for reasons of its own (a tool
call is told when it is whole)."""


def moved(before: Snapshot, after: Snapshot) -> bool:
    """Whether any figure of the engine's own differs between two scrapes: its step loop has turned."""
    return (
        before.iterations != after.iterations
        or before.generation_tokens != after.generation_tokens
        or before.kv_usage_ratio != after.kv_usage_ratio
        or before.running != after.running
        or before.waiting != after.waiting
        or before.prompt_tokens != after.prompt_tokens
        or before.prefix_query_tokens != after.prefix_query_tokens
    )


def tells(snapshot: Snapshot | None) -> bool:
    """Whether the engine has figures that move with its work."""
    return snapshot is not None and (snapshot.iterations is not None or snapshot.generation_tokens is not None)


def patience_s(
    model: StepTimeModel, factor: float, longest_prompt: int, batch: int, context_tokens: int, chunk_tokens: int,
    silence_s: float,
) -> float:  # fmt: skip
    """Longest silence that the work on the instance explains, in seconds.

    `longest_prompt`: tokens of the longest prompt that waits there; 0: none. `batch`, `context_tokens`: what decodes.
    """
    chunks = ceil(longest_prompt / chunk_tokens)
    step_s = model.predict((1.0, float(batch + chunk_tokens), float(context_tokens), 0.0))
    prompt_s = model.predict((float(chunks), float(longest_prompt), 0.0, 0.5 * longest_prompt * longest_prompt))
    explained_s = silence_s + factor * (STEPS * step_s + PROMPTS * prompt_s)
    return explained_s if model.samples >= SAMPLES_MIN else max(explained_s, COLD_S)


def is_evidence(tells_figures: bool, page_s: float, streams: int, others: int) -> bool:
    """Whether silence on this instance says anything.

    `tells_figures`: its metrics move with its work. `page_s`: for how long they have been read since it fell silent;
    `streams`, `others`: attempts on it that tell of each token, and that do not.
    """
    if tells_figures and page_s > 0.0:
        return True  # the page is answered, and says that nothing moves
    if tells_figures:
        return streams > 0  # the page is not answered either
    return others == 0 and streams >= STREAMS_MIN
