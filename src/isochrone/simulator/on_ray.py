"""A sweep's runs as tasks of a Ray cluster.

This very package travels to the cluster with the first task, and so do the workload's files: a node needs Python and
what the package depends on, nothing else, and gives the same results as this machine. A run whose worker is lost is
begun again elsewhere; a run that fails by itself would fail again, and is not.
"""

import importlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from isochrone.simulator import formats
from isochrone.simulator.sweep import Job, Result, files_of, run_job
from isochrone.simulator.workload import BadWorkload

REACH_S_MAX = 5.0
"""Longest wait for a connection to the cluster's address."""
LOCAL = "local"
"""Instead of an address: a Ray cluster of this machine alone, for the time of the sweep."""
RETRIES_MAX = 5
"""Times that a run is begun again after its worker was lost."""
IN_FLIGHT_PER_CORE = 2
"""Runs handed to Ray for each core of the cluster: as many wait there as run, so that no core does, and a cluster that
grows by demand sees some."""


class RayTrouble(Exception):
    """Ray is not there, cannot be reached or gave up, in words for whoever asked for it."""


def run_all(
    jobs: Sequence[Job], address: str, cores: int | None, prepare: Callable[[], None] = lambda: None
) -> Iterator[tuple[Job, Result]]:
    """Results as they come. `prepare` is called first in each worker; `cores` is the size of a local cluster."""
    if not jobs:
        return
    ray = _connected(address, cores)
    try:
        files = ray.put({path: _content(path) for path in files_of(jobs[0].workload)})
        task = ray.remote(max_retries=RETRIES_MAX)(_run)
        left = iter(jobs)
        running: dict[Any, Job] = {}
        while True:
            room = IN_FLIGHT_PER_CORE * max(1, int(ray.cluster_resources().get("CPU", 1))) - len(running)
            running |= {task.remote(job, files, prepare): job for job in islice(left, max(0, room))}
            if not running:
                return
            done, _ = ray.wait(list(running))
            for reference in done:
                yield running.pop(reference), _got(ray, reference)
    finally:
        ray.shutdown()


def _connected(address: str, cores: int | None) -> Any:
    """The module `ray`, in touch with a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start tells nobody about it
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise RayTrouble("Ray is not installed: pip install 'isochrone[ray]'") from None
    _check_reached(address)
    size: dict[str, Any] = {}
    if address == LOCAL:
        size = {"num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    package = {"py_modules": [str(Path(__file__).parent.parent)], "excludes": ["**/__pycache__"]}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", runtime_env=package, **size)
    except Exception as error:  # Ray raises bare ones too, as when a node takes too long to start
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        hint = (
            "" if "RAY_AUTH_MODE" in os.environ else "; a cluster that asks for a token needs RAY_AUTH_MODE=token here"
        )
        raise RayTrouble(reason + hint) from None
    return ray


def _check_reached(address: str) -> None:
    """Ray itself waits for minutes where nobody answers."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):
        return  # `local`, `auto`
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S_MAX).close()
    except (OSError, OverflowError) as error:
        raise RayTrouble(f"nobody answers there: {getattr(error, 'strerror', None) or error}") from None


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadWorkload(f"{path} cannot be read: {error.strerror}") from None


def _got(ray: Any, reference: Any) -> Result:
    """A task's result; its own complaints about the workload come through as they are."""
    try:
        result = ray.get(reference)
    except BadWorkload as error:
        raise BadWorkload(
            str(error.args[0].args[0]) if isinstance(error.args[0], BadWorkload) else str(error)
        ) from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError) as error:
        raise RayTrouble(f"a run lost its worker {RETRIES_MAX + 1} times: {str(error).splitlines()[0]}") from None
    assert isinstance(result, Result)
    return result


_prepared: set[str] = set()
"""What this worker has called."""


def _run(job: Job, files: dict[str, bytes], prepare: Callable[[], None]) -> Result:
    """In a worker."""
    if prepare.__qualname__ not in _prepared:
        prepare()
        _prepared.add(prepare.__qualname__)
    formats.LENT.update(files)
    return run_job(job)
