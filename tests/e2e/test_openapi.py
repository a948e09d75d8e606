"""The OpenAPI document is true: schemathesis draws requests from it, good and bad, and looks at every answer."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isochrone.access.paths import Paths
from tests.support.calls import eventually, get, metric, post
from tests.support.processes import Up, ready_instances

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method",
)  # fmt: skip
"""Not whether bad bodies are refused: the engine decides that, and the gateway passes what it does not know."""
EXAMPLES = int(os.environ.get("ISOCHRONE_SCHEMA_EXAMPLES", "4"))
"""For each path, beside those that go through every limit of the document."""
SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The gateway with two emulated engines in a hurry."""
    flags = "--speed 50 --mean-output 0"
    up = Up(["--engine", "emulated", "--served-name", "tiny", "--engine-arg", flags], tmp_path_factory.mktemp("up"))
    try:
        up.wait_for("gateway", "ready")
        eventually(lambda: ready_instances(up) == 2, within_s=20)
        yield up
    finally:
        up.stop()


def test_every_path_is_described_and_served(up: Up) -> None:
    described = get(up.admin, "/openapi.json").json()["paths"]
    for route in Paths():
        answer = post(up.gateway, route.template, {"model": "nobody"})
        assert answer.json()["error"].get("code") in ("model_not_found", None), route.template
        assert list(described.pop(route.template)) == ["post"]
    for path, methods in described.items():
        assert list(methods) == ["get"]
        assert get(up.gateway, path.replace("{model}", "tiny")).status == 200


@pytest.mark.timeout(600, func_only=True)  # 20 s on a quiet machine
def test_schemathesis_finds_nothing(up: Up, tmp_path: Path) -> None:
    command = [str(SCHEMATHESIS), "run", f"{up.admin}/openapi.json", "--url", up.gateway, "--checks", ",".join(CHECKS)]
    command += ["--max-examples", str(EXAMPLES), "--seed", "1", "--generation-deterministic", "--no-color"]
    command += ["--phases", "examples,coverage,fuzzing", "--warnings", "off", "--continue-on-failure"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1000, check=False)
    print(done.stdout[-1500:])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert metric(up.admin, "isochrone_requests_total") > 100, "engines must have been asked"
    assert metric(up.admin, "isochrone_faults_total") == 0
    assert post(up.gateway, "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 3}).status == 200
    eventually(lambda: metric(up.admin, "isochrone_instance_in_flight_requests") == 0, within_s=10)
