"""The schema as a table: every setting with its unit, default and meaning. /admin/settings and the docs come from it.

`python -m isochrone.config.reference docs/reference` writes the tables into the pages.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from isochrone.config.schema import File, InstanceEntry, RuleEntry, SloEntry, TlsGroup

BEGIN = "<!-- table: {} -->"
END = "<!-- end of table -->"


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


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 1024 * 1024 and value % (1024 * 1024) == 0:
        return f"{value} ({value // (1024 * 1024)} MiB)"
    if isinstance(value, float):
        return f"{value:g}"
    if value in ((), {}):
        return "empty"
    return str(value)


def tables() -> dict[str, str]:
    """Markdown tables by name."""
    return {
        "limits": _table(("Limit", "Unit", "Default", "Meaning"), [(s.name, s.unit, s) for s in limits()]),
        "settings": _table(("Key", "Default", "Meaning"), [(s.name, None, s) for s in settings() if not s.unit]),
        "instance": _table(("Key", "Default", "Meaning"), [(s.name, None, s) for s in settings(InstanceEntry)]),
        "tls": _table(("Key", "Default", "Meaning"), [(s.name, None, s) for s in settings(TlsGroup)]),
        "slo": _table(("Key", "Unit", "Default", "Meaning"), [(s.name, s.unit, s) for s in settings(SloEntry)]),
        "rule": _table(("Key", "Default", "Meaning"), [(s.name, None, s) for s in settings(RuleEntry)]),
    }


def _table(head: tuple[str, ...], rows: list[tuple[str, str | None, Setting]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, unit, setting in rows:
        cells = [f"`{name}`", *([] if unit is None else [unit]), _shown(setting.default), setting.meaning]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(page: str) -> str:
    """The page with each marked table as the code has it now."""
    for name, table in tables().items():
        begin = BEGIN.format(name)
        if begin in page:
            head, _, rest = page.partition(begin)
            _, _, tail = rest.partition(END)
            page = f"{head}{begin}\n{table}\n{END}{tail}"
    return page


def main() -> None:
    """Fill the tables of all pages in the folder."""
    for path in sorted(Path(sys.argv[1]).glob("*.md")):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
