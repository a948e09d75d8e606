"""Emulated engines in processes of their own: killed, stopped, started again at the same port."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.calls import eventually


class Emulated:
    """One engine's process."""

    def __init__(self, folder: Path, name: str, arguments: Sequence[str] = ()) -> None:
        self.url = ""
        self._ready = folder / f"{name}.json"
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Where it listens; 0 before it has ever been up."""
        return int(self.url.rpartition(":")[2] or 0)

    def start(self) -> None:
        """Begin a process; `until_up` waits for it."""
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "isochrone.cli.main", "emulate", "--count", "1", "--model", "m"]
        files = ["--port", str(self.port), "--ready-file", str(self._ready)]
        self._process = subprocess.Popen(
            [*command, *files, *self._arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def is_up(self) -> bool:
        return self._ready.exists()

    def until_up(self, within_s: float = 60.0) -> None:
        eventually(self.is_up, within_s)
        self.url = json.loads(self._ready.read_text())["urls"][0]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGSTOP: it keeps its connections and does nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def emulated(folder: Path, count: int, arguments: Sequence[str] = ()) -> Iterator[list[Emulated]]:
    """So many engines, all up."""
    engines = [Emulated(folder, f"engine-{number}", arguments) for number in range(count)]
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.until_up()
        yield engines
    finally:
        for engine in engines:
            if engine._process is not None:
                engine.kill()
