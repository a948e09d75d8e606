"""Errors as bytes: the JSON bodies that clients of the OpenAI and Anthropic APIs understand.

One shape for every refusal: `{"error": {"message", "type", "param", "code"}}`, and on `/v1/messages`
`{"type": "error", "error": {"type", "message"}}`.
"""

import msgspec

from isochrone.nouns.errors import ApiError

QUOTED_CHARS_MAX = 200
"""Longest piece of a client's own input, in characters, that an error repeats."""

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""HTTP status -> Anthropic's error type; other 4xx are `invalid_request_error`, other 5xx `api_error`."""


def body(error: ApiError, anthropic: bool = False) -> bytes:
    """The JSON body of a refusal."""
    return msgspec.json.encode(_anthropic(error) if anthropic else _openai(error))


def stream_event(error: ApiError, anthropic: bool = False) -> bytes:
    """One whole SSE event for a stream that broke after its head was sent. No `[DONE]` follows it."""
    name = b"event: error\n" if anthropic else b""
    return name + b"data: " + body(error, anthropic) + b"\n\n"


def _openai(error: ApiError) -> dict[str, object]:
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": fields}


def _anthropic(error: ApiError) -> dict[str, object]:
    kind = ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def quoted(raw: bytes) -> str:
    """A client's bytes as it is safe to repeat them: decoded, shortened, in quotes."""
    text = raw[: 4 * QUOTED_CHARS_MAX].decode(errors="replace")
    return repr(text if len(text) <= QUOTED_CHARS_MAX else text[:QUOTED_CHARS_MAX] + "...")


def bad_request(code: str, message: str, param: str | None = None) -> ApiError:
    """400: the client's mistake; trying again changes nothing."""
    return ApiError(400, "invalid_request_error", code, message, param)


def unknown_path(path: bytes) -> ApiError:
    """404 that names the path."""
    message = f"The path {quoted(path)} is not served here. Served are the OpenAI API's inference paths under /v1."
    return ApiError(404, "invalid_request_error", "unknown_path", message)


def method_not_allowed(method: bytes, path: str, allowed: str) -> ApiError:
    """405: the path is served, not with this method. The caller adds the header `Allow`."""
    message = f"The method {quoted(method)} is not allowed on {path}. Use {allowed}."
    return ApiError(405, "invalid_request_error", "method_not_allowed", message)


def slow_request(limit: str, limit_s: float) -> ApiError:
    """408: the client took too long to send its request."""
    message = f"The request was not complete within {limit} = {limit_s:g} s."
    return ApiError(408, "invalid_request_error", "request_timeout", message)


def body_too_large(limit_bytes: int) -> ApiError:
    """413 that names the limit."""
    message = f"The request body is larger than the limit of {limit_bytes} bytes (body_bytes_max)."
    return ApiError(413, "invalid_request_error", "body_too_large", message)


def unsupported_media(media: str, wanted: str) -> ApiError:
    """415: a body that cannot be read."""
    message = f"{media} cannot be read here. Send {wanted}."
    return ApiError(415, "invalid_request_error", "unsupported_media_type", message)


def head_too_large(limit: str, limit_value: int) -> ApiError:
    """431 that names the limit."""
    message = f"The request head is larger than the limit {limit} = {limit_value}."
    return ApiError(431, "invalid_request_error", "head_too_large", message)
