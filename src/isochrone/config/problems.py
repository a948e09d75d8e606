"""Errors that a person can act on: where in the file, which key, what it is, what is expected, what was meant."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

Where = tuple[str | int, ...]
"""A key's path from the top of the file."""

SECRET = ("credentials", "key", "redis", "redis_password")
"""Keys whose value is never shown, not even when it is wrong: it may be the secret itself."""
SHOWN_CHARS = 60
"""Of a wrong value."""
EXPECTED = {
    "tuple_type": "expected a list",
    "dict_type": "expected keys and values",
    "model_type": "expected keys and values",
}
"""pydantic's kind of error -> what the file should have; its own words name Python types."""


class ConfigError(Exception):
    """One or more problems, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(problems))


def dotted(where: Where) -> str:
    """`instances[0].url`."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def nearest(word: str, known: Sequence[str]) -> str:
    """` Did you mean ...?`, or the list of what is known."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(known)}"


def lines_of(root: yaml.Node | None) -> dict[Where, int]:
    """Line (from 1) of each key and list entry. Raises ConfigError for a key that stands twice in one mapping."""
    lines: dict[Where, int] = {}
    for where, line in _walk(root, ()):
        if where in lines:
            raise ConfigError([f"line {line}: {dotted(where)}: this key is already set on line {lines[where]}"])
        lines[where] = line
    return lines


def _walk(node: yaml.Node | None, where: Where) -> Iterator[tuple[Where, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*where, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _walk(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*where, index)
            yield here, value.start_mark.line + 1
            yield from _walk(value, here)


def explain(error: ValidationError, schema: type[BaseModel], lines: dict[Where, int]) -> list[str]:
    """Each error of pydantic as one line of ours, in the order of the file."""
    found = [(_line(tuple(item["loc"]), lines), item) for item in error.errors(include_url=False)]
    found.sort(key=lambda pair: pair[0])
    return [(f"line {line}: " if line else "") + _explain(item, schema) for line, item in found]


def _line(where: Where, lines: dict[Where, int]) -> int:
    """Line of a key, or of the nearest one above it; 0 where the file has neither."""
    return next((lines[where[:end]] for end in range(len(where), 0, -1) if where[:end] in lines), 0)


def _explain(item: Any, schema: type[BaseModel]) -> str:
    where: Where = tuple(item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{dotted(where)}: unknown key; {nearest(str(where[-1]), keys_at(schema, where[:-1]))}"
    if item["type"] == "missing":
        return f"{dotted(where)}: this key is needed"
    message = EXPECTED.get(item["type"]) or item["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if not where or isinstance(item["input"], (dict, BaseModel)) or _may_be_secret(where, item["input"]):
        return f"{dotted(where)}: {message}"
    shown = repr(item["input"])
    shown = shown if len(shown) <= SHOWN_CHARS else shown[:SHOWN_CHARS] + "..."
    return f"{dotted(where)} = {shown}: {message}"


def _may_be_secret(where: Where, value: object) -> bool:
    """A key for secrets, or a URL with a password in it."""
    return where[-1] in SECRET or (isinstance(value, str) and "://" in value and "@" in value)


def keys_at(schema: type[BaseModel], where: Where) -> list[str]:
    """Keys that the mapping at a path may have."""
    here: type[BaseModel] | None = schema
    for part in where:
        if isinstance(part, int) or here is None:
            continue
        fields = {info.alias or name: info for name, info in here.model_fields.items()}
        if part in fields:
            here = _group_in(fields[part].annotation)
    return [info.alias or name for name, info in here.model_fields.items()] if here else []


def _group_in(annotation: Any) -> type[BaseModel] | None:
    """The group that a field's type holds, under optional, tuple or dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _group_in(argument)
        if found is not None:
            return found
    return None
