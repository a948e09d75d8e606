"""Clients of others against the gateway over real vLLM: OpenAI's for npm, Anthropic's, and a load generator."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.calls import eventually, metric
from tests.support.processes import Up

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = Path(__file__).parent / "clients"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@pytest.fixture(scope="session")
def clients(vllm_environment: Path) -> Path:
    """The folder with the clients in it, made now if it is not there."""
    subprocess.run([ROOT / "scripts" / "clients_env.sh"], check=True)
    return vllm_environment / "clients"


def said(command: list[str], **environment: str) -> Any:
    """The line of JSON that a client prints."""
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_npm_client_of_openai(pair: Up, clients: Path) -> None:
    found = said(["node", str(CLIENTS / "npm_openai.js"), pair.gateway], NODE_PATH=str(clients / "node_modules"))
    assert found["models"] == ["tiny"]
    assert found["whole"] == found["streamed"] != ""
    assert found["tokens"] == 12
    assert found["error"] == {"name": "NotFoundError", "status": 404, "code": "model_not_found"}
    # It has left one stream in the middle: the engine is free long before 4,000 tokens are through.
    urls = pair.engines.values()
    eventually(lambda: sum(metric(url, "vllm:num_requests_running") for url in urls) == 0, within_s=2.0)


def test_the_client_of_anthropic(pair: Up, vllm_environment: Path) -> None:
    python = vllm_environment / "vllm" / "bin" / "python"
    found = said([str(python), str(CLIENTS / "anthropic_messages.py"), pair.gateway])
    assert found["whole"] == found["streamed"] != ""
    assert found["tokens"] == 12
    assert found["stop_reason"] == "max_tokens"
    assert found["usage"] == [found["prompt_tokens"], 12]
    assert found["errors"] == {"model": ["NotFoundError", 404], "path": ["BadRequestError", 400]}


def test_a14_guidellm(pair: Up, clients: Path, vllm_environment: Path, tmp_path: Path) -> None:
    """It asks /health and /v1/models first, and sends nulls and both names of the bound on output tokens."""
    report = tmp_path / "report.json"
    command = [
        *(str(clients / "bin" / "guidellm"), "run", "--backend", f"kind=openai_http,target={pair.gateway}"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=12"),
        *("--data", "kind=synthetic_text,prompt_tokens=40,output_tokens=12"),
        *("--tokenizer", f"kind=huggingface_auto,model={vllm_environment / 'tiny-model'}"),
        *("--output", f"kind=json,path={report}", "--disable-console"),
    ]
    done = subprocess.run(command, env=os.environ | OFFLINE, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (12, 0), totals
    assert benchmark["metrics"]["output_token_count"]["successful"]["mean"] == 12
