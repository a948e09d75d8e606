"""`/v1/models` of an engine as model cards."""

import msgspec

from isochrone.nouns.instance import ModelCard

MODELS_MAX = 1024
"""Cards read from one answer; more are left out (an engine with a thousand LoRA adapters is not known)."""
NAME_CHARS_MAX = 512
"""A longer model name is not taken."""


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _List(msgspec.Struct):
    data: list[_Card]


_DECODER = msgspec.json.Decoder(_List)


class BadModels(Exception):
    """The answer is not a list of models."""


def decode(body: bytes) -> tuple[ModelCard, ...]:
    """All models that the engine serves, base models and LoRA adapters, without duplicates.

    vLLM: `max_model_len` on base models, `parent` on adapters, whose context is their base's. llama.cpp and others
    give ids alone.
    """
    try:
        cards = _DECODER.decode(body).data[:MODELS_MAX]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadModels(f"/v1/models: {error}") from None
    lengths = {card.id: card.max_model_len for card in cards}
    models: dict[str, ModelCard] = {}
    for card in cards:
        if not 0 < len(card.id) <= NAME_CHARS_MAX:
            continue
        length = card.max_model_len or lengths.get(card.parent or "")
        models.setdefault(card.id, ModelCard(card.id, length if length and length > 0 else None, card.parent))
    return tuple(models.values())
