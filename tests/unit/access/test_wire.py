"""Errors as bytes."""

import json

import pytest

from isochrone.access import wire
from isochrone.nouns import errors
from isochrone.nouns.errors import ApiError

REFUSALS = [
    wire.bad_request("invalid_json", "No.", "messages"),
    wire.unknown_path(b"/x"),
    wire.method_not_allowed(b"PUT", "/v1/completions", "POST"),
    wire.slow_request("head_s_max", 10),
    wire.body_too_large(1024),
    wire.unsupported_media("text/plain", "application/json"),
    wire.head_too_large("head_bytes_max", 65536),
    errors.unknown_model("m", ["a"]),
    errors.no_instance("m", 3),
    errors.instance_failed("reset", 1),
    errors.timed_out("first_token_s", 2),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: error.code)
def test_every_refusal_has_one_shape(error: ApiError) -> None:
    """Case A-16."""
    body = json.loads(wire.body(error))
    assert list(body) == ["error"]
    assert body["error"] == {
        "message": error.message, "type": error.type, "param": error.param, "code": error.code,
    }  # fmt: skip
    assert error.message.endswith(".")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (404, "not_found_error"), (413, "request_too_large"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"), (500, "api_error"), (503, "overloaded_error"),
    ],
)  # fmt: skip
def test_anthropic_clients_get_their_shape(status: int, kind: str) -> None:
    body = json.loads(wire.body(ApiError(status, "t", "c", "Why."), anthropic=True))
    assert body == {"type": "error", "error": {"type": kind, "message": "Why."}}


def test_a_broken_stream_ends_with_one_error_event() -> None:
    """Case S-04: one data frame with a top-level error object."""
    error = errors.instance_failed("the connection was reset", 1)
    event = wire.stream_event(error)
    assert event == b"data: " + wire.body(error) + b"\n\n"
    assert wire.stream_event(error, anthropic=True).startswith(b'event: error\ndata: {"type":"error"')
    assert b"[DONE]" not in event


def test_limits_are_named_with_their_value() -> None:
    assert "1024 bytes" in wire.body_too_large(1024).message
    assert "head_bytes_max = 65536" in wire.head_too_large("head_bytes_max", 65536).message
    assert "head_s_max = 0.5 s" in wire.slow_request("head_s_max", 0.5).message


def test_a_clients_own_bytes_are_shortened_and_made_safe() -> None:
    message = wire.unknown_path(b"/" + b"\xff\n" * 10_000).message
    assert len(message) < 2000
    assert "\n" not in message
