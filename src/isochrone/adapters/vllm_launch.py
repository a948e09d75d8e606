"""How a vLLM engine is started: where its command is, which flags and which environment it gets.

What is set here and why (vLLM 0.32):
- `--shutdown-timeout 20`: on SIGTERM running requests may end; without it an open stream is never ended and the process
  stays until its client leaves.
- `--enable-prompt-tokens-details`: usage tells how many prompt tokens the prefix cache held.
- On CPUs `VLLM_CPU_OMP_THREADS_BIND=nobind`: the default binds every engine of a machine to the same core.
- On CPUs the executor `uni`, which needs `VLLM_ENABLE_V1_MULTIPROCESSING=0`: one process less and 1 GB of memory less.
- On CPUs blocks of 32 tokens: the default of 128 hides short shared prefixes, and only multiples of 32 are taken.

A user's own flags come last and win; variables that the user has set are left as they are.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SHUTDOWN_TIMEOUT_S = 20

CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
CPU_FLAGS = (
    "--dtype=float32",
    "--enforce-eager",
    "--distributed-executor-backend=uni",
    "--block-size=32",
    f"--kv-cache-memory-bytes={512 << 20}",
)
QUIET_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class VllmNotFound(Exception):
    """There is no `vllm` command where we looked; the message says where, and what to do."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line and the environment variables that it needs beside the inherited ones."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where `make vllm` puts vLLM and the tiny model."""
    return Path(environ.get("ISOCHRONE_CACHE") or Path.home() / ".cache" / "isochrone")


def find_vllm(given: str | None, environ: Mapping[str, str]) -> Path:
    """The `vllm` command: as given, else $ISOCHRONE_VLLM_BIN, else on PATH, else from `make vllm`."""
    named = given or environ.get("ISOCHRONE_VLLM_BIN")
    if named:
        found = shutil.which(named)
        if found is None:
            raise VllmNotFound(f"{named!r} is not a command that can be run.")
        return Path(found)
    cached = cache_folder(environ) / "vllm" / "bin" / "vllm"
    found = shutil.which("vllm", path=environ.get("PATH"))
    if found is not None:
        return Path(found)
    if os.access(cached, os.X_OK):
        return cached
    raise VllmNotFound(
        f"No vLLM: neither --vllm-bin nor ISOCHRONE_VLLM_BIN is given, there is no `vllm` on PATH, and {cached} is not "
        "there. `pip install vllm` on a machine with a GPU; `make vllm` in a clone for vLLM on the CPU."
    )


def is_cpu_build(vllm: Path) -> bool:
    """Whether this `vllm` command is the build for CPUs (the distribution `vllm-cpu`), without importing it."""
    packages = vllm.parent.parent.glob("lib/python3*/site-packages")
    return any(any(folder.glob("vllm_cpu*.dist-info")) for folder in packages)


def accelerators(replica: int, each: int, environ: Mapping[str, str]) -> str:
    """CUDA_VISIBLE_DEVICES of one replica: the next `each` of those that the user made visible, or of 0, 1, 2, ..."""
    visible = [part for part in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    numbers = range(replica * each, (replica + 1) * each)
    if not visible:
        return ",".join(map(str, numbers))
    if numbers[-1] >= len(visible):
        raise ValueError(
            f"Replica {replica + 1} needs {each} accelerator(s), but CUDA_VISIBLE_DEVICES={','.join(visible)} has only "
            f"{len(visible)}. Ask for fewer replicas."
        )
    return ",".join(visible[number] for number in numbers)


def vllm_launch(
    vllm: Path,
    model: str,
    served_name: str,
    port: int,
    replica: int,
    environ: Mapping[str, str],
    extra: Sequence[str] = (),
    accelerators_each: int = 1,
) -> Launch:
    """The command line of one engine on the loopback interface."""
    argv = [
        *(str(vllm), "serve", model, "--host=127.0.0.1", f"--port={port}", f"--served-model-name={served_name}"),
        f"--shutdown-timeout={SHUTDOWN_TIMEOUT_S}",
        "--enable-prompt-tokens-details",
    ]
    wanted = dict(QUIET_ENVIRONMENT)
    if Path(model).is_dir():
        # Nothing has to be looked up on a hub, so nothing may be.
        wanted |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if is_cpu_build(vllm):
        argv += CPU_FLAGS
        wanted |= CPU_ENVIRONMENT
    environment = {name: value for name, value in wanted.items() if name not in environ}
    if not is_cpu_build(vllm):
        environment["CUDA_VISIBLE_DEVICES"] = accelerators(replica, accelerators_each, environ)
    return Launch((*argv, *extra), environment)
