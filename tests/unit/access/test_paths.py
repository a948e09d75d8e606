"""The closed list of routes."""

import pytest

from isochrone.access.paths import Kind, Paths, Route
from isochrone.nouns.errors import ApiError

PATHS = Paths()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (b"/v1/chat/completions", Kind.CHAT),
        (b"/v1/completions", Kind.COMPLETIONS),
        (b"/v1/responses", Kind.RESPONSES),
        (b"/v1/messages", Kind.MESSAGES),
        (b"/v1/embeddings", Kind.PASS),
        (b"/v1/messages/count_tokens", Kind.PASS),
    ],
)
def test_a_served_path_has_its_kind(path: bytes, kind: Kind) -> None:
    route = PATHS.find(b"POST", path)
    assert isinstance(route, Route)
    assert route.kind is kind
    assert route.generates == (kind is not Kind.PASS)
    assert route.template.encode() == path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/embeddings",
        "/pooling",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/tokenize",
        "/detokenize",
        "/classify",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/audio/speech",
        "/v1/images/generations",
    ],
)
def test_paths_beyond_chat_are_served(path: str) -> None:
    """Case A-03."""
    assert isinstance(PATHS.find(b"POST", path.encode()), Route)


def test_the_query_is_no_part_of_the_path() -> None:
    assert PATHS.find(b"POST", b"/v1/completions?a=b?c") is PATHS.find(b"POST", b"/v1/completions")


@pytest.mark.parametrize(
    "path", [b"/", b"", b"/v1/chat", b"/v1/chat/completions/", b"/metrics", b"/v1/models", b"\xff"]
)
def test_any_other_path_is_404_and_named(path: bytes) -> None:
    error = PATHS.find(b"POST", path + b"?secret=1")
    assert isinstance(error, ApiError)
    assert (error.status, error.code) == (404, "unknown_path")
    assert path.decode(errors="replace") in error.message
    assert "secret" not in error.message


def test_another_method_is_405_and_says_which_one_works() -> None:
    error = PATHS.find(b"GET", b"/v1/chat/completions")
    assert isinstance(error, ApiError)
    assert error.status == 405
    assert "POST" in error.message


def test_operators_add_paths() -> None:
    paths = Paths(["/v1/custom", "/v1/chat/completions"])
    added = paths.find(b"POST", b"/v1/custom")
    assert isinstance(added, Route)
    assert not added.generates
    kept = paths.find(b"POST", b"/v1/chat/completions")
    assert isinstance(kept, Route)
    assert kept.kind is Kind.CHAT, "an added path must not change what a known one means"
    assert {route.template for route in Paths()} < {route.template for route in paths}


@pytest.mark.parametrize("path", ["custom", "/a?b", "/a b", "/ä", ""])
def test_a_bad_added_path_is_named(path: str) -> None:
    with pytest.raises(ValueError, match="must start with '/'"):
        Paths([path])
