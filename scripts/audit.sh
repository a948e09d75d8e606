#!/usr/bin/env bash
# Look for known vulnerabilities in the locked versions. Needs the network: an index that answers for vulnerabilities (a
# mirror may not), or with `AUDIT_SERVICE=osv` the database of OSV. A package that could not be looked up is a failure.
#
#   scripts/audit.sh [LOCK ...]     default: requirements/dev.lock, requirements/clients/python.lock
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check install -qq pip-audit
[ $# -gt 0 ] || set -- "$root/requirements/dev.lock" "$root/requirements/clients/python.lock"
status=0
for lock in "$@"; do
    echo "$lock" >&2
    # --strict: what cannot be looked up fails; else "nothing found" might mean "nothing asked".
    "$work/venv/bin/pip-audit" --strict --disable-pip --no-deps --progress-spinner off \
        --vulnerability-service "${AUDIT_SERVICE:-pypi}" --requirement "$lock" || status=1
done
exit $status
