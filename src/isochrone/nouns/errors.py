"""Errors for API clients, in OpenAI's shape. Each says what is wrong and what to do."""

import msgspec

DEADLINE_EXCEEDED = "deadline_exceeded"


class ApiError(msgspec.Struct, frozen=True, gc=False):
    """One refusal. `access/wire.py` renders it as JSON; `status` is also the HTTP status."""

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    @property
    def worth_retrying(self) -> bool:
        """Whether the same request may well succeed a little later: what is told in `x-should-retry`."""
        if self.retry_after_s is not None or self.status == 408:
            return True
        return self.status >= 500 and self.code != DEADLINE_EXCEEDED


def unknown_model(model: str, known: list[str]) -> ApiError:
    """404 that names the models there are (at most ten of them)."""
    shown = ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
    return ApiError(
        404,
        "invalid_request_error",
        "model_not_found",
        f"The model {model[:200]!r} is not served here. Served models: {shown or 'none yet'}.",
        "model",
    )


def model_required(known: list[str]) -> ApiError:
    """400: the body names no model and there is more than one to choose from."""
    return ApiError(
        400,
        "invalid_request_error",
        "model_required",
        f"The body must name a model. Served models: {', '.join(known[:10]) or 'none yet'}.",
        "model",
    )


def no_instance(model: str, retry_after_s: int) -> ApiError:
    """503: instances of the model are configured, none can take a request now."""
    return ApiError(
        503,
        "service_unavailable",
        "no_instance_ready",
        f"No instance of {model[:200]!r} is ready. Try again in {retry_after_s} s.",
        None,
        retry_after_s,
    )


def queue_full(limit: int, retry_after_s: int) -> ApiError:
    """503: the gateway holds as many requests as it may."""
    return ApiError(
        503,
        "service_unavailable",
        "queue_full",
        f"The queue holds its limit of {limit} requests. Try again in {retry_after_s} s.",
        None,
        retry_after_s,
    )


def shed(ttft_s: float, retry_after_s: int) -> ApiError:
    """503: the TTFT objective of a sheddable request can no longer be met."""
    return ApiError(
        503,
        "service_unavailable",
        "slo_unattainable",
        f"The first token can no longer come within {ttft_s:g} s. Try again in {retry_after_s} s.",
        None,
        retry_after_s,
    )


def queue_timeout(waited_s: float, retry_after_s: int) -> ApiError:
    """503: no place came free within the longest wait."""
    return ApiError(
        503,
        "service_unavailable",
        "queue_timeout",
        f"No instance had room within {waited_s:g} s. Try again in {retry_after_s} s.",
        None,
        retry_after_s,
    )


def context_length(prompt_tokens: int, limit: int) -> ApiError:
    """400: the prompt fits no instance of its model."""
    return ApiError(
        400,
        "invalid_request_error",
        "context_length_exceeded",
        f"The prompt is about {prompt_tokens} tokens long; the longest context of any instance is {limit} tokens. "
        "Shorten the prompt.",
        "messages",
    )


def instance_failed(why: str, retry_after_s: int) -> ApiError:
    """502: every attempt that the retry budget allowed has failed before its first byte."""
    return ApiError(502, "server_error", "instance_failed", f"No instance could answer: {why}.", None, retry_after_s)


def retries_spent(retry_after_s: int) -> ApiError:
    """503: the instance was lost, and so many other requests are computed again that this one has to wait its turn."""
    message = f"The instance was lost, and the budget for retries is spent. Try again in {retry_after_s} s."
    return ApiError(503, "service_unavailable", "retries_spent", message, None, retry_after_s)


def instances_full(why: str, retry_after_s: int) -> ApiError:
    """503: instances are well, and none has room now."""
    message = f"No instance has room: {why}. Try again in {retry_after_s} s."
    return ApiError(503, "service_unavailable", "instances_full", message, None, retry_after_s)


def timed_out(limit: str, limit_s: float) -> ApiError:
    """504: a limit of the relay ran out before the first byte."""
    return ApiError(504, "server_error", "timeout", f"The instance did not answer within {limit} = {limit_s:g} s.")


def deadline_exceeded(limit_s: float, sent: bool) -> ApiError:
    """504: the limit that the client has set for its request is over, or cannot be met. `sent`: an instance had it."""
    how = "is not finished" if sent else "cannot be answered"
    message = f"The request {how} within the {limit_s:g} s that it allows (x-request-timeout-ms)."
    return ApiError(504, "server_error", DEADLINE_EXCEEDED, message)
