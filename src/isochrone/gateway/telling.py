"""What a client is told about its request: header lines of its answer, and why there is none, or no whole one."""

from typing import TYPE_CHECKING

from isochrone.gateway.headers import id_line
from isochrone.nouns import errors
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import Outcome

if TYPE_CHECKING:
    from isochrone.gateway.exchange import Exchange

RETRY_AFTER_S = 1
"""Advice to a client whose request failed on every instance that was asked."""


def about(exchange: "Exchange") -> bytes:
    """Header lines that tell the client how its request was served."""
    request = exchange.request.id.encode()
    if not exchange.ordinal:
        return b"x-isochrone-request-id: %b\r\nx-isochrone-attempts: 0\r\n" % request
    if exchange.fallback:
        request += b"\r\nx-isochrone-fallback: %b" % exchange.fallback.encode("ascii", "backslashreplace")
    pool = exchange.gateway.pools.get(exchange.instance)
    instance = pool.id_line if pool is not None else id_line(exchange.instance)
    return b"x-isochrone-request-id: %b\r\n%bx-isochrone-attempts: %d\r\n" % (request, instance, exchange.ordinal)


def nobody_answered(exchange: "Exchange") -> ApiError:
    """For a request that no instance has answered."""
    say = errors.instances_full if exchange.ended_as is Outcome.BUSY else errors.instance_failed
    return say(f"{exchange.ended_as.value}: {exchange.why}", RETRY_AFTER_S)


def cut_short(exchange: "Exchange") -> ApiError:
    """In the middle of an answer."""
    why = _why_not_continued(exchange)
    message = (
        f"The answer broke off and is not whole ({exchange.ended_as.value}: {exchange.why}). "
        f"{f'It cannot go on elsewhere: {why}. ' if why else ''}Send the request again."
    )
    return ApiError(502, "server_error", "answer_broke_off", message)


def _why_not_continued(exchange: "Exchange") -> str:
    if exchange.contract is None:
        return ""
    why = exchange.resuming.refusal() if exchange.resuming is not None else exchange.contract.why
    return why or "no other instance, or no attempt left"
