"""The supervisor over processes that only end: it starts them again, less and less often, and gives up in time.

Each supervisor runs in a process of its own, as it does in production: it forks, and it waits for signals that another
thread of the process could take.
"""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from isochrone.gateway.workers import supervisor
from isochrone.gateway.workers.supervisor import CANNOT_START, FAILURES_MAX, Supervisor, open_sockets
from isochrone.gateway.workers.ties import Ties

HUNG_S = 5.0
DEADLINE_S = 60.0


def supervised(body: Callable[[Path], int], log: Path) -> tuple[int, list[str]]:
    """Exit status of a supervisor that `body` runs, and what its processes noted."""
    log.touch()
    process = multiprocessing.get_context("spawn").Process(target=_exits, args=(body, log))
    process.start()
    process.join(DEADLINE_S)
    if process.exitcode is None:
        process.kill()
        pytest.fail(f"the supervisor still runs; noted so far: {log.read_text().split()}")
    return process.exitcode, log.read_text().split()


def _exits(body: Callable[[Path], int], log: Path) -> None:
    os._exit(body(log))


def waits(ties: Ties) -> int:
    """Until the supervisor ends it."""
    while True:
        signal.pause()


def note(log: Path, word: str) -> int:
    """How often it is there now."""
    with log.open("a") as file:
        file.write(f"{word}\n")
    return log.read_text().split().count(word)


def _one_always_dies(log: Path) -> int:
    supervisor.PAUSE_S_FIRST, supervisor.PAUSE_S_MAX = 0.001, 0.002

    def dies(number: int, ties: Ties) -> int:
        note(log, f"relay-{number}")
        return 7 if number else waits(ties)

    sockets = open_sockets("127.0.0.1", 0, "127.0.0.1", 0, 2)
    status = Supervisor(sockets, lambda epoch, ties: waits(ties), dies, HUNG_S).run(5.0)
    note(log, "folder-left" if sockets.folder.exists() else "folder-gone")
    return status


def test_one_that_always_dies_is_given_up(tmp_path: Path) -> None:
    status, noted = supervised(_one_always_dies, tmp_path / "log")
    assert status == 1
    assert (noted.count("relay-1"), noted.count("relay-0"), noted[-1]) == (FAILURES_MAX + 1, 1, "folder-gone")


def _one_cannot_start(log: Path) -> int:
    def brain(epoch: int, ties: Ties) -> int:
        note(log, "brain")
        return CANNOT_START

    sockets = open_sockets("127.0.0.1", 0, "127.0.0.1", 0, 2)
    return Supervisor(sockets, brain, lambda number, ties: waits(ties), HUNG_S).run(5.0)


def test_one_that_cannot_start_is_not_tried_again(tmp_path: Path) -> None:
    assert supervised(_one_cannot_start, tmp_path / "log") == (1, ["brain"])


def _brain_dies_twice(log: Path) -> int:
    parent = os.getpid()

    def brain(epoch: int, ties: Ties) -> int:
        note(log, f"epoch-{epoch}")
        if epoch == 2:
            os.kill(parent, signal.SIGTERM)
            return waits(ties)
        return 1

    def deaf(number: int, ties: Ties) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return waits(ties)

    sockets = open_sockets("127.0.0.1", 0, "127.0.0.1", 0, 1)
    return Supervisor(sockets, brain, deaf, HUNG_S).run(0.05)


def test_a_brain_is_told_how_many_were_before_it_and_a_hung_relay_is_ended(tmp_path: Path) -> None:
    assert supervised(_brain_dies_twice, tmp_path / "log") == (0, ["epoch-0", "epoch-1", "epoch-2"])


def _one_falls_silent(log: Path) -> int:
    supervisor.BEAT_S = 0.01
    parent = os.getpid()

    def relay(number: int, ties: Ties) -> int:
        if note(log, "relay") == 3:
            os.kill(parent, signal.SIGTERM)
        else:
            os.write(ties.beat, b".")  # the only one
        return waits(ties)

    def brain(epoch: int, ties: Ties) -> int:
        note(log, "brain")
        return waits(ties)  # it has not begun to beat: its start takes long

    sockets = open_sockets("127.0.0.1", 0, "127.0.0.1", 0, 1)
    return Supervisor(sockets, brain, relay, 0.05).run(5.0)


def test_one_that_falls_silent_is_ended(tmp_path: Path) -> None:
    status, noted = supervised(_one_falls_silent, tmp_path / "log")
    assert (status, noted.count("relay"), noted.count("brain")) == (0, 3, 1)


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=rf"^\[Errno \d+\] cannot listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            open_sockets("127.0.0.1", port, "127.0.0.1", 0, 2)
        with pytest.raises(OSError, match=f"admin port: cannot listen on 127.0.0.1:{port}"):
            open_sockets("127.0.0.1", 0, "127.0.0.1", port, 2)
