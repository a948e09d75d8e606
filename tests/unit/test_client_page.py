"""docs/reference/client-api.md names every path, every header and every error code that the code has."""

import ast
from collections.abc import Iterator
from pathlib import Path

from isochrone.access.paths import Paths
from isochrone.gateway.headers import OURS, REQUEST_ACTIONS, Action

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "reference" / "client-api.md").read_text(encoding="utf-8")
MADE_BY = {"ApiError": 2, "bad_request": 0}
"""Call that makes an error -> position of its code."""
NOT_ON_THE_DATA_PORT = frozenset({"admin.py", "admin_guard.py"})


def codes() -> Iterator[str]:
    """The code of every error that is made anywhere for clients."""
    for path in (ROOT / "src" / "isochrone").rglob("*.py"):
        if path.name in NOT_ON_THE_DATA_PORT:
            continue
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call):
                name = getattr(call.func, "id", getattr(call.func, "attr", ""))
                code = call.args[MADE_BY[name]] if name in MADE_BY and len(call.args) > MADE_BY[name] else None
                if isinstance(code, ast.Constant):
                    yield str(code.value)


def test_every_error_code_is_there() -> None:
    found = set(codes())
    assert len(found) > 30
    assert sorted(code for code in found if f"`{code}`" not in PAGE) == []


def test_every_path_is_there() -> None:
    assert [route.template for route in Paths() if f"`{route.template}`" not in PAGE] == []


def test_every_header_of_ours_is_there() -> None:
    ours = [name for name in REQUEST_ACTIONS if name.startswith((OURS, b"x-slo-", b"x-session", b"x-request"))]
    assert len(ours) > 5
    assert all(REQUEST_ACTIONS[name] in (Action.TAKE, Action.NOTE) for name in ours)
    assert [name.decode() for name in ours if f"`{name.decode()}" not in PAGE] == []
