"""What llm-d's scorers share: prompts in blocks of 64 tokens."""

from isochrone.scheduling.price import Ask

BLOCK_TOKENS = 64
"""The producer's least block size; its default of 16 is raised to it."""


def match_ratios(ask: Ask, count: int) -> list[float]:
    """Cached blocks over whole blocks of the prompt, for each of the rows; 0 for a prompt without a whole block."""
    total = ask.prompt_tokens // BLOCK_TOKENS
    if ask.hits is None or total == 0:
        return [0.0] * count
    return [min(int(hit) // BLOCK_TOKENS, total) / total for hit in ask.hits]
