"""From a YAML file (and what flags override) to a Configuration, or a ConfigError that says what to do."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from isochrone.config.build import Configuration, build
from isochrone.config.problems import ConfigError, Where, explain, lines_of
from isochrone.config.schema import File

FILE_BYTES_MAX = 4 * 1024 * 1024
"""A longer configuration file is not read."""


def load(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
    text: str | None = None,
) -> Configuration:
    """Read the file, if there is one, lay the overrides over it (nested mappings, key by key), check, and build.

    Overrides win over the file, the file over the defaults. A list (instances) is replaced as a whole. `text`: what the
    file held when another process read it; it is not read again.
    """
    data: dict[str, Any] = {}
    lines: dict[Where, int] = {}
    if path is not None:
        text = _read(path) if text is None else text
        data, lines = _parsed(path, text)
    try:
        file = File.model_validate(_merged(data, overrides or {}))
    except ValidationError as error:
        raise _named(path, explain(error, File, lines)) from None
    try:
        return replace(build(file, environment), text=text)
    except ConfigError as error:
        raise _named(path, error.problems) from None


def _read(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise ConfigError([f"{path}: {size} bytes; at most {FILE_BYTES_MAX} are read"])
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 text (byte {error.start})"]) from None


def _parsed(path: Path, text: str) -> tuple[dict[str, Any], dict[Where, int]]:
    """The file as plain data, with the line of each key."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
        lines = lines_of(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError([f"{path}: {place}{error.problem or 'not YAML'}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: not YAML: {error}"]) from None
    except ConfigError as error:
        raise _named(path, error.problems) from None
    if data is None:
        return {}, lines
    if not isinstance(data, dict):
        raise ConfigError([f"{path}: expected keys and values at the top, found a {type(data).__name__}"])
    return {str(key): value for key, value in data.items()}, lines


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `under`, mapping by mapping."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return merged


def _named(path: Path | None, problems: list[str]) -> ConfigError:
    return ConfigError([f"{path}: {problem}" for problem in problems] if path else problems)
