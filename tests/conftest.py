"""Shared by all tests. What only one kind of test needs stands in that folder's own conftest.py."""

import os

import pytest
from hypothesis import Phase, settings

# A busy machine must not turn a slow example into a failure; what is too slow is a benchmark's question.
settings.register_profile("steady", deadline=None)
settings.register_profile("long", deadline=None, max_examples=2000)
# A mutant that dies need not die beautifully: the smallest example takes a minute, the first a second.
settings.register_profile("mutants", deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real engines go last: they take both cores for a minute, and a quick failure should not wait for them."""
    items.sort(key=lambda item: item.get_closest_marker("vllm") is not None)
