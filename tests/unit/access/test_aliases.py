"""Aliases: who is chosen, and how the body is changed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.access import aliases
from isochrone.access.aliases import Aliases, Target, draw_of, renamed
from isochrone.access.fields import BadRequest

SPLIT = Aliases({"a": (Target("x", 9), Target("y", 1), Target("z", 0)), "b": (Target("n"),), "x": (Target("x"),)})


def test_weights_split_the_traffic() -> None:
    chosen = [SPLIT.choose("a", number / 1000, {"x", "y", "z"}) for number in range(1000)]
    assert (chosen.count("x"), chosen.count("y")) == (900, 100)
    assert SPLIT.choose("a", 0.01, {"y"}) == "y"
    assert SPLIT.choose("a", 0.5, {"z"}) is None
    assert SPLIT.choose("b", 0.5, {"x"}) is None


def test_sessions_are_spread_and_stay() -> None:
    chosen = [SPLIT.choose("a", draw_of(f"session {number}"), {"x", "y"}) for number in range(2000)]
    assert 130 < chosen.count("y") < 270
    assert chosen == [SPLIT.choose("a", draw_of(f"session {number}"), {"x", "y"}) for number in range(2000)]


def test_aliases_are_listed_while_some_target_is_served() -> None:
    assert SPLIT.lengths({"x": 8, "y": 4}) == {"a": 4, "x": 8}
    assert SPLIT.lengths({"x": 8, "y": None}) == {"a": None, "x": 8}
    assert "a" in SPLIT
    assert sorted(SPLIT) == ["a", "b", "x"]


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (b'{"model":"a"}', b'{"model":"n\\"ew"}'),
        (b'{ "x":1e-7, "model" :\n "a" ,"z":9e99}', b'{ "x":1e-7, "model" :\n "n\\"ew" ,"z":9e99}'),
        (b'{"n":{"model":"a"},"model":"a"}', b'{"n":{"model":"a"},"model":"n\\"ew"}'),
        (b'{"x":"model","model":"a"}', b'{"x":"model","model":"n\\"ew"}'),
        (b'{"n":{"model":"a"},"mod\\u0065l":"a"}', b'{"n":{"model":"a"},"mod\\u0065l":"n\\"ew"}'),
        (b'{"x":"\\"model\\":\\"a\\"","model":"a"}', b'{"x":"\\"model\\":\\"a\\"","model":"n\\"ew"}'),
    ],
)  # fmt: skip
def test_only_the_models_value_changes(body: bytes, after: bytes) -> None:
    assert renamed(body, "a", 'n"ew') == after


@given(
    st.dictionaries(st.text(max_size=8), st.recursive(st.text() | st.integers(), st.lists, max_leaves=4), max_size=6)
)
def test_everything_else_keeps_its_value(more: dict[str, object]) -> None:
    body = {**more, "model": "a", "nested": {"model": "a"}}
    changed = json.loads(renamed(json.dumps(body).encode(), "a", "b"))
    assert changed == {**body, "model": "b"}


def test_a_form() -> None:
    form = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nmodel\x00\xffa\r\n'
        b'--B\r\nContent-Disposition: form-data; name="model"\r\nContent-Type: text/plain\r\n\r\na\r\n--B--\r\n'
    )
    assert renamed(form, "a", "new", form=True) == form.replace(b"\r\na\r\n--B--", b"\r\nnew\r\n--B--")
    with pytest.raises(BadRequest):
        renamed(form, "other", "new", form=True)


def test_a_body_too_tangled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.access.members.TOKENS_MAX", 5)
    with pytest.raises(BadRequest):
        aliases.renamed(b'{"x":[[[[[[[[]]]]]]]],"y":"model","model":"a"}', "a", "b")
