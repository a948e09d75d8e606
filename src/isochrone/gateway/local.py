"""What the gateway answers by itself: `/health`, `/ready`, `/v1/models`. Contacts no instance."""

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import msgspec

from isochrone.access import wire
from isochrone.gateway import clock
from isochrone.nouns import errors
from isochrone.nouns.errors import ApiError

if TYPE_CHECKING:
    from isochrone.gateway.app import Gateway
    from isochrone.gateway.inbound import Inbound
    from isochrone.gateway.server import ClientConnection

MODELS = b"/v1/models"
RETRY_AFTER_S = 2
JSON = b"content-type: application/json\r\n"


def is_local(target: bytes) -> bool:
    """True for a path that is answered here."""
    path = target.partition(b"?")[0]
    return path in (b"/health", b"/ready", MODELS) or path.startswith(MODELS + b"/")


METHODS = (b"GET", b"HEAD")


def needs_key(inbound: "Inbound") -> bool:
    """False where the answer tells a stranger nothing: our health, and that a method is wrong."""
    return inbound.method in METHODS and inbound.target.partition(b"?")[0] not in (b"/health", b"/ready")


def answer(gateway: "Gateway", client: "ClientConnection", inbound: "Inbound", sees: Callable[[str], bool]) -> None:
    """Answer a request to one of our paths. `sees`: whether the caller may hear of a model."""
    gateway.bodies.release(inbound)
    path = inbound.target.partition(b"?")[0]
    if inbound.method not in METHODS:
        error = wire.method_not_allowed(inbound.method, path[:200].decode("latin-1"), "GET, HEAD")
        client.refuse(inbound, error, False, b"allow: GET, HEAD\r\n")
    elif path in (b"/health", b"/ready"):
        _state(gateway, client, inbound)
    elif path == MODELS:
        cards = [card(name, length) for name, length in gateway.models().items() if sees(name)]
        client.answer(inbound, 200, JSON, msgspec.json.encode({"object": "list", "data": cards}))
    else:
        _one_model(gateway, client, inbound, path, sees)


def _state(gateway: "Gateway", client: "ClientConnection", inbound: "Inbound") -> None:
    if gateway.draining:
        client.refuse(inbound, draining(), False, b"")
    elif gateway.cluster.can_serve():
        client.answer(inbound, 200, JSON, b'{"status":"ok"}')
    else:
        client.refuse(inbound, errors.no_instance("any model", RETRY_AFTER_S), False, b"")


def _one_model(
    gateway: "Gateway", client: "ClientConnection", inbound: "Inbound", path: bytes, sees: Callable[[str], bool]
) -> None:  # fmt: skip
    """Model names may hold slashes, escaped or not."""
    name = unquote_to_bytes(path[len(MODELS) + 1 :]).decode(errors="replace")
    models = {name: length for name, length in gateway.models().items() if sees(name)}
    if name in models:
        client.answer(inbound, 200, JSON, msgspec.json.encode(card(name, models[name])))
    else:
        client.refuse(inbound, errors.unknown_model(name, sorted(models)), False, b"")


def card(name: str, max_model_len: int | None) -> dict[str, object]:
    """One model in OpenAI's shape, with vLLM's `max_model_len` where it is known."""
    shown: dict[str, object] = {
        "id": name,
        "object": "model",
        "created": int(STARTED_S),
        "owned_by": "isochrone",
    }
    if max_model_len is not None:
        shown["max_model_len"] = max_model_len
    return shown


STARTED_S = clock.wall_s()
"""`created` of every model: the gateway knows no better."""


def draining() -> ApiError:
    """503: the gateway is about to stop."""
    return ApiError(
        503,
        "service_unavailable",
        "draining",
        f"The gateway is stopping and takes no new requests. Try again in {RETRY_AFTER_S} s.",
        None,
        RETRY_AFTER_S,
    )


def crowded(connections_max: int) -> ApiError:
    """503: as many clients are connected as may be."""
    return ApiError(
        503,
        "service_unavailable",
        "connections_full",
        f"The gateway has its limit of {connections_max} connections open (connections_max). "
        f"Try again in {RETRY_AFTER_S} s.",
        None,
        RETRY_AFTER_S,
    )
