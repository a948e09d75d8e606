"""Writes the tables of docs/reference and docs/concepts from the code: `.venv/bin/python scripts/reference.py`.

A page holds `<!-- table: NAME -->` ... `<!-- end of table -->`; what stands between is replaced. A test fails when a
page and the code differ.
"""

import ast
import inspect
import random
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel

from isochrone.access.keys import KeyRing
from isochrone.cluster import Cluster
from isochrone.cluster.view import InstanceView, QueueView
from isochrone.config.driver import KeyPlan
from isochrone.config.reference import Setting, limits, settings
from isochrone.config.schema import InstanceEntry, TlsGroup
from isochrone.config.schema_clients import RuleEntry, SloEntry, TargetEntry, TenantEntry
from isochrone.gateway import decisions, gauges
from isochrone.gateway.app import Gateway
from isochrone.gateway.keywatch import KeyWatch
from isochrone.gateway.workers.reports import Reports
from isochrone.nouns.decision import Candidate, Decision, Try
from isochrone.nouns.settings import Settings
from isochrone.observe.families import Family, families
from isochrone.scheduling.parts import PARTS

ROOT = Path(__file__).parent.parent
BEGIN = "<!-- table: {} -->"
END = "<!-- end of table -->"
INSTANTS = {name: name.removesuffix("_at") + "_s" for name in decisions.INSTANTS}
"""Fields of a record -> how the admin API shows them."""


def all_families() -> list[Family]:
    """Every metric of the admin port (beside those of the process), without rows."""
    cluster = Cluster(Settings(), random.Random(0))
    return [
        *families(cluster.series),
        *gauges.instance_gauges([]),
        *gauges.queue_gauges([]),
        *gauges.asking_counters([]),
        *gauges.build_info("", None),
        *Reports(Gateway(cluster)).families(None),
        *gauges.tenant_gauges([]),
        *KeyWatch(KeyRing(), KeyPlan()).families(),
    ]


@dataclass(frozen=True)
class Fixed:
    """A limit that is a constant in the code."""

    name: str
    value: float
    meaning: str

    @property
    def unit(self) -> str:
        """The word before `_MAX`: BODY_BYTES_MAX is in bytes."""
        word = self.name.rpartition(".")[2].split("_")[-2].lower()
        return {"chars": "characters"}.get(word, word)


def fixed_limits() -> Iterator[Fixed]:
    """Every module-level constant whose name ends in `_MAX`, with the sentence that stands below it. Not those of the
    simulator's checks, which are bars, not limits."""
    source = ROOT / "src"
    for path in sorted(source.rglob("*.py")):
        if path.parent.name == "belief" or path.name.startswith("validate"):
            continue
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for statement, following in zip_longest(body, body[1:]):
            name = _constant_name(statement)
            if name is None or not name.endswith("_MAX"):
                continue
            assert isinstance(statement, ast.Assign | ast.AnnAssign)
            value = _number(statement.value)
            if value is None:
                continue
            text = ast.unparse(following.value) if isinstance(following, ast.Expr) else "''"
            meaning = " ".join(str(ast.literal_eval(text)).split())
            yield Fixed(f"{module}.{name}".removeprefix("isochrone."), value, meaning)


def _constant_name(statement: ast.stmt) -> str | None:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    return target.id if isinstance(target, ast.Name) and target.id.isupper() and target.id[0] != "_" else None


def _number(expression: ast.expr | None) -> float | None:
    """The value of a number, or of a product of numbers."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, int | float):
        return expression.value
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Mult):
        left, right = _number(expression.left), _number(expression.right)
        return None if left is None or right is None else left * right
    return None


def shown(value: object) -> str:
    """A default as the docs show it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 1024 * 1024 and value % (1024 * 1024) == 0:
        return f"{value} ({value // (1024 * 1024)} MiB)"
    if isinstance(value, float):
        return f"{value:g}"
    return "empty" if value in ((), {}) else str(value)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows])


def _keys(listed: list[Setting]) -> str:
    return table(("Key", "Default", "Meaning"), [(f"`{s.name}`", shown(s.default), s.meaning) for s in listed])


def _keys_of(schema: type[BaseModel]) -> str:
    return _keys(list(settings(schema)))


def field_docs(struct: type) -> dict[str, str]:
    """Field -> the docstring that stands below it."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(made, ast.ClassDef)
    docs = {}
    for statement, following in zip_longest(made.body, made.body[1:]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = following.value if isinstance(following, ast.Expr) else None
            docs[statement.target.id] = str(value.value) if isinstance(value, ast.Constant) else ""
    return docs


def _fields(struct: type, renamed: Mapping[str, str] = MappingProxyType({})) -> str:
    rows = [(f"`{renamed.get(name, name)}`", " ".join(doc.split())) for name, doc in field_docs(struct).items()]
    return table(("Field", "Meaning"), [row for row in rows if row[0] != "``"])


def tables() -> dict[str, str]:
    """Every table by name."""
    from scripts import worked_example as example  # here: run as a file, the root is put on the path below

    names = tuple(given.name for given in example.GIVEN)
    return {
        "example state": table(
            ("Instance", "Cached tokens", "Waiting", "Decoding", "KV tokens read", "Level"), example.state_lines()
        ),
        "example price": table(("Seconds", *names), example.price_lines()),
        "limits": table(
            ("Limit", "Unit", "Default", "Meaning"),
            [(f"`{s.name}`", s.unit, shown(s.default), s.meaning) for s in limits()],
        ),
        "fixed limits": table(
            ("Limit", "Unit", "Value", "Meaning"),
            [(f"`{one.name}`", one.unit, shown(one.value), one.meaning) for one in fixed_limits()],
        ),
        "settings": _keys([setting for setting in settings() if not setting.unit]),
        "instance": _keys_of(InstanceEntry),
        "tls": _keys_of(TlsGroup),
        "target": _keys_of(TargetEntry),
        "slo": _keys_of(SloEntry),
        "rule": _keys_of(RuleEntry),
        "tenant": _keys_of(TenantEntry),
        "instance fields": _fields(InstanceView),
        "queue fields": _fields(QueueView),
        "decision fields": _fields(Decision, INSTANTS | {"evidence": ""}),
        "try fields": _fields(Try, INSTANTS),
        "candidate fields": _fields(Candidate),
        "parts": table(("Part", "What is left out"), [(f"`{name}`", text) for name, text in sorted(PARTS.items())]),
        "metrics": table(
            ("Metric", "Kind", "Labels", "Meaning"),
            [
                (f"`{family.name}`", family.kind, ", ".join(family.labels), family.help)
                for family in sorted(all_families(), key=lambda family: family.name)
            ],
        ),
    }


def filled(page: str) -> str:
    """The page with each marked table as the code has it now."""
    for name, text in tables().items():
        begin = BEGIN.format(name)
        if begin in page:
            head, _, rest = page.partition(begin)
            page = f"{head}{begin}\n{text}\n{END}{rest.partition(END)[2]}"
    return page


def pages() -> list[Path]:
    """Every page that holds such tables."""
    return sorted(path for room in ("reference", "concepts") for path in (ROOT / "docs" / room).glob("*.md"))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
