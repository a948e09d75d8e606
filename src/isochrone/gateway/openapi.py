"""What the gateway serves to clients, as an OpenAPI 3.1 document made from the table of paths.

Bodies pass as they come, so only what the gateway itself needs of them is described; what the engine's answer holds is
the engine's business, beside the shape of errors.
"""

import re
from collections.abc import Iterable
from typing import Any

import isochrone
from isochrone.access.paths import Kind, Route
from isochrone.gateway.local import MODELS

Json = dict[str, Any]

NEEDED = {Kind.CHAT: "messages", Kind.COMPLETIONS: "prompt", Kind.RESPONSES: "input", Kind.MESSAGES: "messages"}
"""Field beside `model` without which no engine answers."""
MULTIPART = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations")
"""Paths whose bodies are forms with files."""
ANSWER_HEADERS = {
    "x-isochrone-request-id": "Ask the admin API for the record with it.",
    "x-isochrone-attempts": "Dispatches until the head was sent; 0: refused here.",
}
REFUSALS = {
    "400": "The body or a header cannot be read, or the prompt is too long",
    "401": "No key, or a wrong one",
    "403": "The key may not",
    "404": "No such model",
    "413": "The body is too large",
    "429": "The tenant's limit; see Retry-After",
    "502": "Every attempt failed, or the instance's own error",
    "503": "No instance is ready, or the queue is full; see Retry-After",
    "504": "A limit in time is over",
}
"""Status -> when."""
ENGINES_TOO = ("400", "404")
"""Engines refuse with these as well, and their errors pass as they are."""


def document(routes: Iterable[Route]) -> Json:
    """The whole document."""
    paths = {route.template: {"post": _inference(route)} for route in routes}
    for path, summary in (("/health", "Some instance takes requests"), ("/ready", "The same")):
        paths[path] = {"get": _local(summary, {"type": "object", "required": ["status"]}, ("503",), [])}
    models = MODELS.decode()
    model = _named("Model")
    listed = {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": model}},
    }
    named = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    paths[models] = {"get": _local("What the instances serve", listed, ("401",), [])}
    paths[models + "/{model}"] = {"get": _local("One model", model, ("401", "404"), [named])}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Isochrone",
            "version": isochrone.__version__,
            "description": "Many inference engines behind the API of one. docs/reference/client-api.md says more.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Error": ERROR,
                "AnthropicError": ANTHROPIC_ERROR,
                "EngineError": ENGINE_ERROR,
                "Model": MODEL,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _inference(route: Route) -> Json:
    error = "AnthropicError" if route.anthropic else "Error"
    media: Json = {"application/json": {"schema": {}}}
    if route.generates:
        media["text/event-stream"] = {"schema": {"type": "string"}}
    elif route.template == "/v1/audio/speech":
        media["audio/*"] = {}
    answers: Json = {"200": {"description": "The engine's answer", "headers": _headers(), "content": media}}
    answers |= {status: _error(text, error, _headers()) for status, text in REFUSALS.items()}
    for status in ENGINES_TOO:
        answers[status]["content"]["application/json"]["schema"] = {"anyOf": [_named(error), _named("EngineError")]}
    answers["default"] = {"description": "The engine's own error, as it was given", "headers": _headers()}
    form = "multipart/form-data" if route.template in MULTIPART else "application/json"
    return {
        "operationId": _name(route.template),
        "summary": "Answered by an instance of the model" if route.generates else "Passed on to an instance",
        "requestBody": {"required": True, "content": {form: {"schema": _body(route)}}},
        "responses": answers,
    }


def _body(route: Route) -> Json:
    """What is read of a body here; all else passes."""
    fields: Json = {"model": {"type": "string", "minLength": 1}}
    required = ["model"] if route.model_required else []
    if route.generates:
        fields["stream"] = {"type": "boolean"}
        required.append(NEEDED[route.kind])
    if "messages" in required:
        message = {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"type": "string"}},
        }
        fields["messages"] = {"type": "array", "minItems": 1, "items": message}
    elif route.generates:
        fields[NEEDED[route.kind]] = {"type": "string", "minLength": 1}
    if route.kind in (Kind.CHAT, Kind.COMPLETIONS):
        fields["max_tokens"] = {"type": "integer", "minimum": 1}
    return {"type": "object", "properties": fields, "required": required}


def _local(summary: str, schema: Json, refusals: tuple[str, ...], parameters: list[Json]) -> Json:
    """A path that the gateway answers by itself."""
    answers: Json = {"200": {"description": summary, "content": {"application/json": {"schema": schema}}}}
    answers |= {status: _error(REFUSALS[status], "Error", {}) for status in refusals}
    return {"summary": summary, "parameters": parameters, "responses": answers}


def _error(description: str, shape: str, headers: Json) -> Json:
    content = {"application/json": {"schema": _named(shape)}}
    return {"description": description, "headers": headers, "content": content}


def _named(shape: str) -> Json:
    return {"$ref": f"#/components/schemas/{shape}"}


def _headers() -> Json:
    return {
        name: {"description": text, "required": True, "schema": {"type": "string"}}
        for name, text in ANSWER_HEADERS.items()
    }


def _name(path: str) -> str:
    """`/v1/chat/completions` -> `v1_chat_completions`."""
    return re.sub(r"[^a-z0-9]+", "_", path.lower()).strip("_")


ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
ENGINE_ERROR: Json = {
    "description": "As vLLM and SGLang word theirs; `detail` where a path is unknown to them",
    "type": "object",
    "anyOf": [{"required": ["error"]}, {"required": ["detail"]}, {"required": ["message"]}],
}
ANTHROPIC_ERROR: Json = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
MODEL: Json = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
        "max_model_len": {"type": "integer", "description": "Longest context of any instance, in tokens."},
    },
}
