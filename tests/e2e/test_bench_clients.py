"""A-14: a benchmark client of others runs against the gateway with nothing but a URL and a model."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import Up

pytestmark = pytest.mark.vllm


def test_a14_vllms_own_benchmark_runs_against_the_gateway(pair: Up, vllm_environment: Path) -> None:
    command = [
        *(str(vllm_environment / "vllm" / "bin" / "vllm"), "bench", "serve", "--base-url", pair.gateway),
        *("--model", "tiny", "--tokenizer", str(vllm_environment / "tiny-model")),
        *("--dataset-name", "random", "--random-input-len", "40", "--random-output-len", "12", "--num-prompts", "16"),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split(":", 1) for line in done.stdout.splitlines() if ":" in line]
    counts = {name.strip(): value.strip() for name, value in lines}
    assert counts["Successful requests"] == "16", done.stdout
    assert counts.get("Failed requests", "0") == "0", done.stdout
