#!/usr/bin/env bash
# Make .venv in the clone: every package at the version of requirements/dev.lock, and this package editable.
# Does nothing when .venv already stands for this lock file, this pyproject.toml and this Python.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
[ -n "$python" ] || { echo "Python 3.11 or newer is needed (python3.11 or python3 on PATH)." >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$python is older than Python 3.11." >&2; exit 1; }
cd "$root"

stamp=.venv/.made-from
made_from=$({ cat requirements/dev.lock pyproject.toml; "$python" --version; pwd; } | sha256sum | cut -c1-64)
[ "$(cat "$stamp" 2> /dev/null || true)" = "$made_from" ] && exit 0

# Debian ships `venv` without the part that puts pip into a new environment; the package of that Python brings it.
scripts/apt.sh "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" python:ensurepip

echo "Setting up .venv ..." >&2
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=(.venv/bin/python -m pip --disable-pip-version-check)
"${pip[@]}" install -qq --requirement requirements/dev.lock
# The build tools are in the lock file too: no second environment, no version chosen today.
"${pip[@]}" install -qq --no-deps --no-build-isolation --editable .
echo "$made_from" > "$stamp"
