"""Two real vLLM engines and a gateway in front of them, for the tests that compare with the real thing."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.calls import eventually
from tests.support.processes import Up, ready_instances

ROOT = Path(__file__).resolve().parents[2]
START_S_MAX = 300.0
"""For two vLLM engines side by side on two cores: 45 to 60 s on a quiet machine."""
KV_BYTES = 128 << 20
"""Four requests of the longest kind fit at once, or some hundreds of short ones."""


def environment() -> Path:
    """The cache folder with vLLM and the tiny model in it, made now if `make vllm` has not made them."""
    subprocess.run([ROOT / "scripts" / "vllm_env.sh"], check=True)
    return Path(os.environ.get("ISOCHRONE_CACHE") or Path.home() / ".cache" / "isochrone")


@contextmanager
def pair_of_vllm(cache: Path, logs: Path, more: Sequence[str] = ()) -> Iterator[Up]:
    """`isochrone up` with two engines and the gateway, all ready; `more` for its command line."""
    arguments = [
        *("--engine", "vllm", "--vllm-bin", str(cache / "vllm" / "bin" / "vllm"), "--replicas", "2"),
        *("--model", str(cache / "tiny-model"), "--served-name", "tiny"),
        *("--engine-arg", f"--max-model-len=8192 --kv-cache-memory-bytes={KV_BYTES}"),
    ]
    up = Up([*arguments, *more], logs)
    try:
        for name in ("engine-1", "engine-2", "gateway"):
            up.wait_for(name, "ready", within_s=START_S_MAX)
        eventually(lambda: ready_instances(up) == 2, within_s=30)
        yield up
    finally:
        status = up.stop()
    assert status == 0
