"""A real Redis for tests: on a free port of 127.0.0.1, in memory, ended with the block."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]

START_S = 20.0


def installed() -> str:
    """The server's command; Debian's package is installed where it is missing."""
    subprocess.run([str(ROOT / "scripts" / "apt.sh"), "redis-server", "redis-server"], check=True)
    command = shutil.which("redis-server")
    assert command is not None
    return command


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[str]:
    """Its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [installed(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *options]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _until_open(process, port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def _until_open(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_S
    while True:
        assert process.poll() is None, "redis-server has ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < end, "redis-server does not listen"
            time.sleep(0.01)
