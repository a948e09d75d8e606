"""The page of reported cases names tests that exist, and has every case of its kinds."""

import ast
import re

import pytest

from scripts.reference import ROOT

PAGE = (ROOT / "docs" / "internals" / "reported_cases.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([A-Z]-\d\d) \| .* \| (covered|in part)\b.*? \| (.*) \|$", PAGE, re.MULTILINE)
NUMBERS = {
    "S": (1, 2, 4, 6, 7, 9, 11, 12),
    "A": (1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16),
    "F": (1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15),
    "C": (1, 3, 5),
    "T": (1, 3),
    "Q": (1, 2, 3),
    "X": (1, 3, 4, 5, 7),
    "Z": (1, 2),
}


def test_every_case_has_a_row() -> None:
    assert [case for case, _, _ in ROWS] == [f"{kind}-{number:02}" for kind in NUMBERS for number in NUMBERS[kind]]


@pytest.mark.parametrize(("case", "tests"), [(case, tests) for case, _, tests in ROWS], ids=[row[0] for row in ROWS])
def test_its_tests_exist(case: str, tests: str) -> None:
    named = re.findall(r"`([^`]+)`", tests)
    assert named
    for one in named:
        path, _, function = one.partition("::")
        source = (ROOT / "tests" / path).read_text(encoding="utf-8")
        defined = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        assert not function or function in defined, one
        if path.startswith("integration/reported/"):
            assert function.startswith("test_" + case.replace("-", "").lower()), one
