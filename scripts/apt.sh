#!/usr/bin/env bash
# Install Debian packages that are missing, and only those.
#
#   scripts/apt.sh PACKAGE PROBE [PACKAGE PROBE ...]
#
# PROBE tells whether the package is needed: a library's file name (libnuma.so.1), `python:MODULE`, or a command.
set -euo pipefail

python=${PYTHON:-$(command -v python3.11 || command -v python3)}

present() {
    case "$1" in
        python:*) "$python" -c "import ${1#python:}" 2> /dev/null ;;
        *.so.*) PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -qF "$1" ;;
        *) command -v "$1" > /dev/null ;;
    esac
}

missing=()
while [ $# -gt 0 ]; do
    present "$2" || missing+=("$1")
    shift 2
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "Installing Debian packages: ${missing[*]}" >&2
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || { echo "Ask an administrator to run: apt-get install ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" > /dev/null
