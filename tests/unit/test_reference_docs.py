"""Tables of docs/reference, the dashboard and the code agree."""

import inspect
import json
import re
from pathlib import Path

import pytest

from isochrone.cluster.view import InstanceView, QueueView
from isochrone.config import build
from isochrone.config.driver import RelayLimits
from isochrone.config.loader import load
from isochrone.config.reference import limits
from isochrone.config.schema_limits import LimitsGroup, PricingGroup
from isochrone.gateway.admin import Admin
from isochrone.nouns.decision import Candidate, Decision, Try
from isochrone.nouns.settings import Settings
from scripts.reference import ROOT, all_families, field_docs, filled, fixed_limits, pages, tables

REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_pages_say_what_the_code_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == filled(text), "run `.venv/bin/python scripts/reference.py`"


def test_every_table_is_in_some_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in pages())
    assert [name for name in tables() if f"<!-- table: {name} -->" not in text] == []


def test_every_setting_of_core_and_relay_can_be_configured() -> None:
    """A field that is added to Settings or RelayLimits must be added to the schema and to `build` too."""
    built = inspect.getsource(build)
    for field in Settings.__struct_fields__:
        assert f"{field}=" in built or field in PricingGroup.model_fields, field
    assert set(RelayLimits.__dataclass_fields__) <= set(LimitsGroup.model_fields)
    assert load().settings == Settings()
    assert load().relay == RelayLimits()


def test_each_limit_has_unit_and_meaning() -> None:
    for one in limits():
        assert one.unit, one.name
        assert one.meaning.endswith("."), one.name
    constants = list(fixed_limits())
    assert len(constants) > 10
    assert [one.name for one in constants if not one.meaning.endswith(".")] == []


@pytest.mark.parametrize(
    "shown", [InstanceView, QueueView, Decision, Try, Candidate], ids=lambda struct: struct.__name__
)
def test_every_field_that_operators_see_is_explained(shown: type) -> None:
    docs = field_docs(shown)
    assert list(docs) == list(shown.__struct_fields__)  # type: ignore[attr-defined]
    assert [name for name, doc in docs.items() if not doc.endswith(".")] == []


def test_every_metric_has_a_name_that_follows_the_rules() -> None:
    names = [family.name for family in all_families()]
    assert len(names) == len(set(names))
    for family in all_families():
        assert re.fullmatch(r"isochrone_[a-z0-9_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.help.endswith("."), family.name


def expressions() -> list[str]:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "isochrone.json").read_text(encoding="utf-8"))
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return found + [str(variable["query"]) for variable in dashboard["templating"]["list"]]


def test_dashboard_names_only_metrics_and_labels_that_exist() -> None:
    labels = {}
    for family in all_families():
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        labels.update({family.name + suffix: {*family.labels, "le"} for suffix in suffixes})
    used = 0
    for expression in expressions():
        for name, selector in re.findall(r"\b(isochrone_\w+)(?:\{([^}]*)\})?", expression):
            used += 1
            assert name in labels, f"{name} in {expression}"
            for label in re.findall(r"(\w+)\s*(?:=~|!=|=)", selector):
                assert label in labels[name], f"{label} of {name} in {expression}"
    assert used > 40


def test_queries_of_the_metrics_page_name_metrics_that_exist() -> None:
    page = (REFERENCE / "metrics.md").read_text(encoding="utf-8")
    names = {family.name for family in all_families()}
    for name in re.findall(r"\bisochrone_\w+", page):
        assert re.sub(r"_(bucket|sum|count)$", "", name) in names


def test_admin_page_names_every_call() -> None:
    page = (REFERENCE / "admin-api.md").read_text(encoding="utf-8")
    for method, path, _ in Admin.routes(Admin.__new__(Admin)):
        assert f"`{method} {path.replace(':path', '')}`" in page
