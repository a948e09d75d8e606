"""Real engines for the end-to-end tests: one pair of vLLM for the whole run, and one emulated engine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.calls import eventually
from tests.support.processes import Up
from tests.support.real_vllm import environment, pair_of_vllm


@dataclass(frozen=True)
class Engine:
    """An engine to talk to without a gateway between."""

    url: str
    model: str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starting engines counts against its own limits, not against that of the test that happens to come first."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(180, func_only=True))


@pytest.fixture(scope="session")
def vllm_environment() -> Path:
    """The cache folder with vLLM and the tiny model in it."""
    return environment()


@pytest.fixture(scope="session")
def pair(vllm_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """`isochrone up` with two real vLLM engines and the gateway, all ready."""
    with pair_of_vllm(vllm_environment, tmp_path_factory.mktemp("up-vllm")) as up:
        yield up


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One emulated engine on a free port."""
    folder = tmp_path_factory.mktemp("emulated")
    ready, log = folder / "ready.json", folder / "emulate.log"
    flags = ["--port", "0", "--count", "1", "--model", "tiny", "--speed", "4", "--ready-file", str(ready)]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "isochrone.cli.main", "emulate", *flags], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        eventually(lambda: ready.exists() or process.poll() is not None, within_s=20)
        assert ready.exists(), log.read_text()
        yield Engine(json.loads(ready.read_text())["urls"][0], "tiny")
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(params=[pytest.param("vllm", marks=pytest.mark.vllm), "emulated"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """One engine of each kind in turn, for the contract that both must keep."""
    if request.param == "vllm":
        return Engine(request.getfixturevalue("pair").engines["engine-1"], "tiny")
    emulated = request.getfixturevalue("emulated")
    assert isinstance(emulated, Engine)
    return emulated
