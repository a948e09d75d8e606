"""The spliced field."""

import pytest

from isochrone.access import members
from isochrone.access.inject import with_usage
from isochrone.access.paths import Kind, Route
from isochrone.access.scan import scan

CHAT = Route("/v1/chat/completions", Kind.CHAT)
ASKED = b'"stream_options":{"include_usage":true}'


def spliced(body: bytes, route: Route = CHAT) -> bytes | None:
    return with_usage(route, scan(route, body), body)


def test_it_is_added_at_the_end_of_the_body() -> None:
    body = b'{"model":"m", "stream" : true , "x":{"y":[1e-7,"}"]}\n} \n'
    assert spliced(body) == b'{"model":"m", "stream" : true , "x":{"y":[1e-7,"}"]}\n,' + ASKED + b"} \n"


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (b"{}", b'{"include_usage":true}'),
        (b"{ }", b'{ "include_usage":true}'),
        (b'{"x" : 1}', b'{"x" : 1,"include_usage":true}'),
        (b'{"include_usage":false}', b'{"include_usage":true}'),
        (b'{"a":{"include_usage":1}, "include_usage" : null }', b'{"a":{"include_usage":1}, "include_usage" : true }'),
        (b'{"continuous_usage_stats":false}', b'{"continuous_usage_stats":false,"include_usage":true}'),
        (b"null", b'{"include_usage":true}'),
    ],
)
def test_the_clients_own_options_are_kept(options: bytes, changed: bytes) -> None:
    head, tail = b'{"model":"m","x":{"stream_options":1},"stream_options" : ', b' ,"stream":true,"y":"\\ud800"}'
    assert spliced(head + options + tail) == head + changed + tail


@pytest.mark.parametrize(
    "options", [b'{"include_usage":true}', b'{"continuous_usage_stats":true}', b"5", b"[]", b'{"include_usage":"x"}']
)
def test_nothing_changes_where_usage_comes_anyway_or_could_not_be_cut(options: bytes) -> None:
    assert spliced(b'{"model":"m","stream":true,"stream_options":' + options + b"}") is None


@pytest.mark.parametrize("body", [b'{"model":"m"}', b'{"model":"m","stream":false}', b'{"model":"m","stream":null}'])
def test_only_streams(body: bytes) -> None:
    assert spliced(body) is None


@pytest.mark.parametrize("kind", [Kind.RESPONSES, Kind.MESSAGES, Kind.PASS])
def test_only_chat_and_completions(kind: Kind) -> None:
    assert spliced(b'{"model":"m","stream":true}', Route("/x", kind)) is None
    assert spliced(b'{"model":"m","stream":true}', Route("/x", Kind.COMPLETIONS)) is not None


def test_a_tangled_body_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "TOKENS_MAX", 10)
    assert spliced(b'{"model":"m","stream":true,"x":[[[[[[[[[[]]]]]]]]]],"stream_options":{}}') is None
