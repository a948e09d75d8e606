"""A log file that another process writes into, kept below a size."""

import os
import shutil
from pathlib import Path

LOG_BYTES_MAX = 64 * 1024 * 1024
"""Size at which a log file is moved to `<name>.1`; so a process keeps at most twice this."""
TAIL_BYTES = 4096


class LogFile:
    """Appended to by a child through its own descriptor, so nothing passes through us and nothing can block it."""

    def __init__(self, path: Path, bytes_max: int = LOG_BYTES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._from = 0
        """Where the output of the latest start begins."""

    def open(self) -> int:
        """A descriptor for a child's output; the caller closes it once the child has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.trim()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._from = os.fstat(descriptor).st_size
        return descriptor

    def add(self, text: str) -> None:
        """A word of our own among the child's."""
        with self.path.open("a") as file:
            file.write(text)

    def trim(self) -> None:
        """Move the text to `<name>.1` once it is too long. The child appends, so its next line starts the empty file;
        what it writes between the copy and the cut is lost."""
        if self.path.exists() and self.path.stat().st_size > self._bytes_max:
            shutil.copyfile(self.path, self.path.with_name(self.path.name + ".1"))
            os.truncate(self.path, 0)
            self._from = 0

    def last_lines(self, count: int) -> list[str]:
        """The end of what the latest start wrote, for a person who has to know why a process died."""
        with self.path.open("rb") as file:
            file.seek(max(self._from, self.path.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-count:]
