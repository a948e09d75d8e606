"""The exact walk over an object's members."""

import json

import pytest

from isochrone.access import members as walk
from isochrone.access.members import TooComplex, members


def texts(body: bytes, at: int = 0) -> list[tuple[str, bytes]]:
    return [(member.key, body[member.start : member.end]) for member in members(body, at)]


def test_members_in_order_with_their_exact_text() -> None:
    body = rb' { "a" : 1e-7 , "b":[1,{"a":2}, "]"],"c" :"x\"}{","d":{"e":{}} ,"a":null,"f":-0.0,"g":true } '
    assert texts(body) == [
        ("a", b"1e-7"),
        ("b", b'[1,{"a":2}, "]"]'), ("c", rb'"x\"}{"'), ("d", b'{"e":{}}'),
        ("a", b"null"), ("f", b"-0.0"), ("g", b"true"),
    ]  # fmt: skip


@pytest.mark.parametrize("body", [b"{}", b" { } "])
def test_an_empty_object_has_none(body: bytes) -> None:
    assert texts(body) == []


def test_escaped_keys_are_read() -> None:
    assert texts(rb'{"mod\u0065l":1,"a\\":2,"\"":3}') == [("model", b"1"), ("a\\", b"2"), ('"', b"3")]


def test_a_nested_object_can_be_walked() -> None:
    body = b'{"a":{"x":1},"b":{"y":2}}'
    assert texts(body, body.index(b'{"y"')) == [("y", b"2")]


def test_the_walk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "TOKENS_MAX", 100)
    assert len(texts(json.dumps({str(n): n for n in range(50)}).encode())) == 50
    for value in ({str(n): n for n in range(200)}, {"a": [[]] * 200}, {str(n): "x" for n in range(60)}):
        with pytest.raises(TooComplex):
            texts(json.dumps(value).encode())
