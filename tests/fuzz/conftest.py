"""How long a fuzz test may take."""

from pathlib import Path

import pytest

from tests.support.fuzzing import EXAMPLES

LIMIT_S = 120 + EXAMPLES / 10
"""A tenth of a second for an example is ten times what one takes: only a test that hangs is ended. hypothesis would
take the interruption for a fault of the test's strategies, so it should not come to a slow one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(LIMIT_S))
