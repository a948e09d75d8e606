#!/usr/bin/env bash
# Clients of others that the end-to-end tests run against the gateway, outside the clone, built once and kept.
#
#   ${ISOCHRONE_CACHE:-~/.cache/isochrone}/
#     clients-<hash>/   guidellm in an environment on top of vLLM's (torch, transformers, the anthropic client are
#                       there already), and the npm client of OpenAI; <hash> is that of the lock files and the versions
#     clients           a link to the one in use
#
# Two builds at once wait for each other; only a folder with the file .complete counts. The first build takes a minute.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/vllm_env.sh" > /dev/null
"$root/scripts/apt.sh" nodejs node npm npm
locks="$root/requirements/clients"
cache=${ISOCHRONE_CACHE:-$HOME/.cache/isochrone}
vllm=$(readlink -f "$cache/vllm")
hash=$({ cat "$locks/python.lock" "$locks/package-lock.json"; basename "$vllm"; node --version; } | sha256sum | cut -c1-12)
environment="$cache/clients-$hash"

build() {
    echo "Building $environment (about a minute) ..." >&2
    rm -rf "$environment"
    "$vllm/bin/python" -m venv "$environment"
    local packages='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$vllm/bin/python" -c "$packages" > "$("$environment/bin/python" -c "$packages")/vllm.pth"
    "$environment/bin/python" -m pip --disable-pip-version-check install -qq --no-deps --requirement "$locks/python.lock"
    cp "$locks/package.json" "$locks/package-lock.json" "$environment/"
    (cd "$environment" && npm ci --silent --ignore-scripts --no-audit --no-fund)
    touch "$environment/.complete"
}

{
    flock 9
    [ -e "$environment/.complete" ] || build
    ln -sfn "$(basename "$environment")" "$cache/clients"
} 9> "$cache/.clients-lock"

echo "clients: $environment"
