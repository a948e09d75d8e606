"""Finished runs kept in a file, so that a long comparison may be cut off and go on later.

One JSON line a run: `key`, what a reader wants to see of it, and `result`. The key is a hash of everything that the
result follows from: workload (a file by its bytes), arm, plan, seed, scales, and the source of the rooms that a run
goes through. After a change of any of them the run is made again; its old line stays and does no harm.
"""

import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import msgspec

from isochrone.simulator.sweep import Job, Result, files_of
from isochrone.simulator.workload import BadWorkload

ROOMS = ("access", "cluster", "instances", "kv", "nouns", "observe", "scheduling", "simulator", "twin")
"""Rooms whose code a run goes through. The rest of the package may change without a run being made again."""
ONLY_SHOWS = frozenset({"on_ray.py", "plots.py", "report.py", "results.py", "saved.py", "swarm.py"})
"""Files of the simulator that a run does not go through."""
LINE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one saved run; a longer line is none of ours."""


class Saved(msgspec.Struct):
    """A line of the file."""

    key: str
    result: Result


class SavedRuns:
    """The file, read once and then added to."""

    def __init__(self, path: str, plugins: Sequence[bytes] = ()) -> None:
        """`plugins`: the source of policies from elsewhere."""
        self._path = Path(path)
        self._base = sha256(b"".join([source_digest(), *plugins]))
        self._results = dict(self._read())
        self._digests: dict[str, bytes] = {}
        with self._path.open("ab") as file:  # complain now, not after the first run
            self._torn = file.tell() > 0 and not self._ends_whole()

    def find(self, job: Job) -> Result | None:
        """What came out of this very run, where that is known."""
        return self._results.get(self.key(job))

    def add(self, job: Job, result: Result) -> None:
        """Write the line at once, in one piece: whatever happens next, it is there."""
        key = self.key(job)
        line = msgspec.json.encode(
            {"key": key, "workload": job.workload, "rate_scale": job.rate_scale, "instances": result.instances,
             "arm": job.arm.name, "seed": job.seed, "result": result}
        )  # fmt: skip
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, b"\n" * self._torn + line + b"\n")
        finally:
            os.close(handle)
        self._torn = False
        self._results[key] = result

    def key(self, job: Job) -> str:
        """Hexadecimal. Equal for two jobs only if they must give the same."""
        made = self._base.copy()
        for path in files_of(job.workload):
            if path not in self._digests:
                self._digests[path] = file_digest(path)
            made.update(self._digests[path])
        made.update(msgspec.json.encode(job, order="deterministic"))
        return made.hexdigest()[:32]

    def _read(self) -> Iterator[tuple[str, Result]]:
        """Whole lines; one that a cut-off left half written, or that an older version wrote, is passed over."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                try:
                    one = msgspec.json.decode(line, type=Saved)
                except msgspec.MsgspecError:
                    continue
                yield one.key, one.result

    def _ends_whole(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def source_digest() -> bytes:
    """Of the code that a run goes through, and of numpy's version."""
    made = sha256(metadata.version("numpy").encode())
    package = Path(__file__).parent.parent
    for path in sorted(path for room in ROOMS for path in (package / room).rglob("*.py")):
        if path.parent.name != "belief" and not (path.parent.name == "simulator" and path.name in ONLY_SHOWS):
            made.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return made.digest()


def file_digest(path: str) -> bytes:
    try:
        return sha256(Path(path).read_bytes()).digest()
    except OSError as error:
        raise BadWorkload(f"{path} cannot be read: {error.strerror}") from None


__all__ = ["SavedRuns"]
