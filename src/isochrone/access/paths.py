"""Which inference routes are served: a closed list that operators extend by configuration.

A path that is not here contacts no instance. `/v1/models`, `/health` and the like are answered by the gateway itself.
"""

import enum
from collections.abc import Iterable, Iterator

import msgspec

from isochrone.access import wire
from isochrone.nouns.errors import ApiError


class Kind(enum.StrEnum):
    """How a route's body is read and its answer metered."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    """Anthropic's dialect."""
    PASS = "pass"
    """Generates no tokens one by one (embeddings, scores, audio, ...): only the model and the size are read."""


class Route(msgspec.Struct, frozen=True, gc=False):
    """One served path."""

    template: str
    """The path itself: one of a closed list, safe as a metric label."""
    kind: Kind
    model_required: bool = True
    """False: engines answer without a model, so the gateway may fill in its only one."""

    @property
    def generates(self) -> bool:
        """True where the answer is output tokens, which may be streamed."""
        return self.kind is not Kind.PASS

    @property
    def anthropic(self) -> bool:
        """True where errors take Anthropic's shape."""
        return self.template.startswith("/v1/messages")


GENERATING = {
    "/v1/chat/completions": Kind.CHAT,
    "/v1/completions": Kind.COMPLETIONS,
    "/v1/responses": Kind.RESPONSES,
    "/v1/messages": Kind.MESSAGES,
}

PASSED_ON = (
    "/v1/embeddings",
    "/v1/messages/count_tokens",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/tokenize",
    "/detokenize",
    "/v1/tokenize",
    "/v1/detokenize",
    "/pooling",
    "/classify",
    "/v1/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/v2/embed",
    "/v1/moderations",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
)
"""Paths of vLLM, SGLang and llama.cpp beside text generation, with and without `/v1` as the engines have them."""

METHOD = b"POST"
"""The only method of an inference route: each needs a body that names its model."""


class Paths:
    """The table of routes. One dict look-up a request."""

    def __init__(self, extra: Iterable[str] = ()) -> None:
        """`extra`: paths from the configuration, passed on like `/v1/embeddings`. Raises ValueError for a bad one."""
        routes = [Route(path, kind) for path, kind in GENERATING.items()]
        routes += [Route(path, Kind.PASS, model_required=False) for path in PASSED_ON]
        routes += [Route(checked(path), Kind.PASS, model_required=False) for path in extra]
        self._routes: dict[bytes, Route] = {}
        for route in routes:
            self._routes.setdefault(route.template.encode(), route)

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())

    def find(self, method: bytes, target: bytes) -> Route | ApiError:
        """The route of a request line (`target` may carry a query), or the 404 or 405 to answer."""
        route = self._routes.get(target)
        if route is None:
            path = target.partition(b"?")[0]
            route = self._routes.get(path)
            if route is None:
                return wire.unknown_path(path)
        if method != METHOD:
            return wire.method_not_allowed(method, route.template, "POST")
        return route


def checked(path: str) -> str:
    """A path from the configuration, or ValueError that says what is wrong with it."""
    if not path.startswith("/") or not path.isascii() or any(sign in path for sign in "?# "):
        raise ValueError(f"path {path!r} must start with '/' and hold only ASCII without '?', '#' or spaces")
    return path
