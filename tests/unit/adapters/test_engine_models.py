"""`/v1/models` of engines as model cards."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.adapters.engine.models import MODELS_MAX, BadModels, decode
from isochrone.nouns.instance import ModelCard


def listing(*cards: dict[str, object]) -> bytes:
    return json.dumps({"object": "list", "data": cards}).encode()


def test_base_model_and_adapter() -> None:
    body = listing(
        {"id": "base", "object": "model", "max_model_len": 4096, "permission": [{"id": "x"}]},
        {"id": "lora", "object": "model", "parent": "base", "max_model_len": None},
    )
    assert decode(body) == (ModelCard("base", 4096), ModelCard("lora", 4096, "base"))


def test_ids_alone_and_duplicates() -> None:
    assert decode(listing({"id": "a"}, {"id": "a"}, {"id": ""}, {"id": "x" * 600})) == (ModelCard("a"),)


def test_bounded() -> None:
    assert len(decode(listing(*({"id": str(number)} for number in range(MODELS_MAX + 5))))) == MODELS_MAX


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data": 3}', b'{"data": [{}]}', b'{"data": [{"id": "a"}'])
def test_bad_lists_are_refused(body: bytes) -> None:
    with pytest.raises(BadModels):
        decode(body)


@given(st.binary(max_size=100))
def test_random_bytes(junk: bytes) -> None:
    for body in (junk, b'{"data":[{"id":"' + junk + b'"}]}'):
        try:
            decode(body)
        except BadModels:
            continue
