"""What a request takes on an engine that has nothing else to do, and how many of them an engine can carry."""

from isochrone.twin.profiles import Profile

GAP_S_MAX = 0.1
"""Longest mean gap between tokens at which an engine still counts as carrying its load."""


def first_token_s(profile: Profile, prompt_tokens: int) -> float:
    """Prefill of the whole prompt, chunk by chunk."""
    chunk, step = profile.chunk_tokens, profile.step
    whole, rest = divmod(prompt_tokens, chunk)
    seconds = whole * step.seconds(chunk, 0, 0.0) + (step.seconds(rest, 0, 0.0) if rest else 0.0)
    return seconds + step.pair_s * prompt_tokens * prompt_tokens / 2


def whole_s(profile: Profile, prompt_tokens: int, output_tokens: int) -> float:
    """Prefill and all decode steps, alone."""
    steps = output_tokens - 1
    context = steps * prompt_tokens + steps * (steps + 1) / 2
    decode_s = steps * profile.step.seconds(1, 0, 0.0) + profile.step.kv_token_s * context
    return first_token_s(profile, prompt_tokens) + decode_s


def carries(profile: Profile, prompt: float, uncached: float, output: float) -> float:
    """Requests a second that one engine carries at its knee, by mean sizes in tokens.

    With B decoding requests and step time t(B), a request takes output*t(B)/B of the engine for its tokens and w for
    its prefill, so the rate is B / (output*t(B) + B*w). B is as large as slots, KV memory and GAP_S_MAX allow.
    """
    step = profile.step
    work_s = uncached * step.token_s + step.pair_s * uncached * max(prompt - uncached / 2, 0.0)
    context = prompt + output / 2
    best = 0.0
    for batch in range(1, min(profile.max_num_seqs, max(1, int(profile.kv_tokens / (context or 1.0)))) + 1):
        step_s = step.seconds(batch, 0, 0.0) + step.kv_token_s * batch * context
        rate = batch / (output * step_s + batch * work_s)
        if best and batch / (rate * output) > GAP_S_MAX:
            break
        best = rate
    return best
