"""What engines can be asked for beyond OpenAI's API."""

GIVES_TOKEN_IDS = frozenset({"vllm"})
"""Engines that know `return_token_ids`, take ids as a prompt, and have `/tokenize`. vLLM: since 0.10.2."""
