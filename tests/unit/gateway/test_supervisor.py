"""The supervisor over processes that only end: it starts them again, less and less often, and gives up in time."""

import os
import signal
import socket
from pathlib import Path

import pytest

from isochrone.gateway.workers import supervisor
from isochrone.gateway.workers.supervisor import CANNOT_START, FAILURES_MAX, Supervisor, open_sockets
from isochrone.gateway.workers.ties import Ties

HUNG_S = 5.0
QUIET = "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"


def waits(ties: Ties) -> int:
    """Until the supervisor ends it."""
    while True:
        signal.pause()


def starts(log: Path, word: str) -> int:
    return log.read_text().count(word)


def note(log: Path, word: str) -> None:
    with log.open("a") as file:
        file.write(f"{word}\n")


@pytest.fixture(autouse=True)
def _unblocked() -> object:
    """A supervisor has the process for itself; a test gives it back as it was."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    while signal.sigtimedwait(supervisor.SIGNALS, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.filterwarnings(QUIET)
def test_one_that_always_dies_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_S_FIRST", 0.001)
    monkeypatch.setattr(supervisor, "PAUSE_S_MAX", 0.002)
    log = tmp_path / "log"

    def dies(number: int, ties: Ties) -> int:
        note(log, f"relay-{number}")
        return 7 if number else waits(ties)

    sockets = open_sockets("127.0.0.1", 0, "127.0.0.1", 0, 2)
    assert Supervisor(sockets, lambda epoch, ties: waits(ties), dies, HUNG_S).run(5.0) == 1
    assert (starts(log, "relay-1"), starts(log, "relay-0")) == (FAILURES_MAX + 1, 1)
    assert not sockets.folder.exists()


@pytest.mark.filterwarnings(QUIET)
def test_one_that_cannot_start_is_not_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def brain(epoch: int, ties: Ties) -> int:
        note(log, "brain")
        return CANNOT_START

    sockets = open_sockets("127.0.0.1", 0, "127.0.0.1", 0, 2)
    assert Supervisor(sockets, brain, lambda number, ties: waits(ties), HUNG_S).run(5.0) == 1
    assert starts(log, "brain") == 1


@pytest.mark.filterwarnings(QUIET)
def test_a_brain_is_told_how_many_were_before_it_and_a_hung_relay_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
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
    assert Supervisor(sockets, brain, deaf, HUNG_S).run(0.05) == 0
    assert log.read_text().split() == ["epoch-0", "epoch-1", "epoch-2"]


@pytest.mark.filterwarnings(QUIET)
def test_one_that_falls_silent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BEAT_S", 0.01)
    log = tmp_path / "log"
    parent = os.getpid()

    def relay(number: int, ties: Ties) -> int:
        note(log, "relay")
        if starts(log, "relay") == 3:
            os.kill(parent, signal.SIGTERM)
        else:
            os.write(ties.beat, b".")  # the only one
        return waits(ties)

    def brain(epoch: int, ties: Ties) -> int:
        note(log, "brain")
        return waits(ties)  # it has not begun to beat: its start takes long

    sockets = open_sockets("127.0.0.1", 0, "127.0.0.1", 0, 1)
    assert Supervisor(sockets, brain, relay, 0.05).run(5.0) == 0
    assert (starts(log, "relay"), starts(log, "brain")) == (3, 1)


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=rf"^\[Errno \d+\] cannot listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            open_sockets("127.0.0.1", port, "127.0.0.1", 0, 2)
        with pytest.raises(OSError, match=f"admin port: cannot listen on 127.0.0.1:{port}"):
            open_sockets("127.0.0.1", 0, "127.0.0.1", port, 2)
