"""What was learnt (step times, output lengths, bytes a token) kept over restarts, in one JSON file.

Written whole to a neighbour file and renamed, so that a crash leaves the old one or the new one. A file that cannot be
used is reported and left alone: a cold start is safe, only less well informed.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from isochrone.gateway import clock

log = logging.getLogger("isochrone.warmstart")

FORMAT = 1
SAVE_INTERVAL_S = 60.0
FILE_BYTES_MAX = 64 * 1024 * 1024
"""A longer file is not read."""


class Learner(Protocol):
    """What is kept: `isochrone.cluster.Cluster`."""

    def learned(self) -> dict[str, object]: ...

    def restore(self, learned: Mapping[str, object]) -> None: ...


class _Kept(msgspec.Struct):
    format: int
    saved_at_unix_s: float
    learned: dict[str, object]


class WarmStart:
    """Loads at start; saves every minute and at exit."""

    def __init__(self, path: Path, learner: Learner, interval_s: float = SAVE_INTERVAL_S) -> None:
        self.path = path
        self.interval_s = interval_s
        self._learner = learner
        self._task: asyncio.Task[None] | None = None

    def load(self) -> bool:
        """Hand the file's content to the cluster. False where there is none, or none that can be used."""
        try:
            if self.path.stat().st_size > FILE_BYTES_MAX:
                raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
            kept = msgspec.json.decode(self.path.read_bytes(), type=_Kept)
            if kept.format != FORMAT:
                raise ValueError(f"format {kept.format}, expected {FORMAT}")
            self._learner.restore(kept.learned)
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                log.warning("warm start: %s: there is no such folder; nothing will be kept", self.path.parent)
            return False
        except Exception as error:  # a learner may fail in any way on a file from elsewhere; starting cold is right
            log.warning("warm start: %s cannot be used, starting cold: %s", self.path, error)
            return False
        return True

    def start(self) -> None:
        """Save from now on. Needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="warm start")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            await self.save()

    async def save(self) -> None:
        """Write the file. A failure is reported and tried again at the next turn."""
        try:
            body = msgspec.json.encode(_Kept(FORMAT, clock.wall_s(), self._learner.learned()))
            await asyncio.to_thread(_replace, self.path, body)
        except (OSError, TypeError, ValueError) as error:
            log.warning("warm start: %s was not saved: %s", self.path, error)

    async def close(self) -> None:
        """Save once more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.save()


def _replace(path: Path, body: bytes) -> None:
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as stream:
        stream.write(body)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)
