"""The schema as a table: every setting with its unit, default and meaning, for /admin/settings and the docs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from isochrone.config.schema import File


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the file."""

    name: str
    """Path from the top: `queue.requests_max`."""
    unit: str
    """Empty for what has none (names, switches)."""
    default: Any
    meaning: str


def settings(schema: type[BaseModel] = File, above: str = "") -> Iterator[Setting]:
    """Every key with a value of its own, groups unfolded."""
    for key, info in schema.model_fields.items():
        name = above + (info.alias or key)
        if isinstance(info.default, BaseModel):
            yield from settings(type(info.default), name + ".")
        else:
            default = "needed" if info.is_required() else info.default
            yield Setting(name, _unit(info), default, info.description or "")


def limits() -> list[Setting]:
    """Settings that have a unit."""
    return [setting for setting in settings() if setting.unit]


def values(file: BaseModel, above: str = "") -> dict[str, Any]:
    """Setting name -> value in this file, without the instances."""
    found: dict[str, Any] = {}
    for key, info in type(file).model_fields.items():
        value = getattr(file, key)
        name = above + (info.alias or key)
        if name == "instances":
            continue
        if isinstance(info.default, BaseModel):
            found.update(values(value, name + "."))
        else:
            found[name] = to_jsonable_python(value)
    return found


def _unit(info: FieldInfo) -> str:
    extra = info.json_schema_extra
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""
