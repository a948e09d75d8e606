"""Starts the brain and the relays, and starts dead ones again. Does nothing else, so that nothing else can end it.

The processes are forked: what was imported is shared, and a dead one is replaced within milliseconds. The supervisor
holds every listening socket, so a connection that comes while a process is being replaced waits in the kernel:

    clients   one socket for each relay on the same port (SO_REUSEPORT: the kernel spreads connections over them)
    relays    the Unix socket of the brain, in a folder that only this user can open
    admin     the admin port

Every process writes a beat into a pipe, from its event loop; one that has begun to and is silent for `hung_s_max` is
ended and started again.

Signals: SIGTERM and SIGINT drain (relays first, then the brain), a second one cuts; SIGHUP goes to the brain, which
tells the relays. Children whose supervisor is gone see the end of a pipe, and drain.
"""

import gc
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from isochrone.gateway import clock, descriptors
from isochrone.gateway.workers.ties import BEAT_S, Ties
from isochrone.nouns.instant import SECOND, Instant, nanoseconds

STEADY_S = 10.0
"""A process that has run for so long is started again at once."""
PAUSE_S_FIRST = 0.1
"""Before the second start after an early death; the first is at once."""
PAUSE_S_MAX = 5.0
"""A process that dies young is started again after a pause that doubles up to this."""
FAILURES_MAX = 8
"""Early deaths in a row of one process; then all is stopped."""
CANNOT_START = 3
"""Exit status of a process that has said why it cannot start: another start would not mend it."""
LATE_S = 1.0
"""A supervisor that is itself so late (the machine stood still) holds the silence of that time against nobody."""
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
BRAIN = "brain"
BEATS_READ = 64
"""Bytes of beats taken in at once."""

log = logging.getLogger("isochrone.supervisor")


@dataclass(frozen=True, slots=True)
class Sockets:
    """Everything that is listened on. Inherited by all; each closes what is not its own."""

    clients: tuple[socket.socket, ...]
    """One for each relay."""
    relays: socket.socket
    admin: socket.socket
    folder: Path
    """Holds the socket of the brain."""

    @property
    def brain(self) -> str:
        """Path at which relays find the brain."""
        return str(self.folder / "brain")

    @property
    def port(self) -> int:
        return int(self.clients[0].getsockname()[1])

    def keep(self, *mine: socket.socket) -> None:
        """Close all but these."""
        for one in (*self.clients, self.relays, self.admin):
            if one not in mine:
                one.close()


def open_sockets(host: str, port: int, admin_host: str, admin_port: int, relays: int) -> Sockets:
    """Bind everything. OSError that names the address where one is taken."""
    with ExitStack() as opened:
        admin = opened.enter_context(_bound(admin_host, admin_port, "admin port: "))
        admin.listen()
        with _bound(host, port) as alone:  # a port that is shared with strangers would be taken for free
            port = int(alone.getsockname()[1])
        clients = tuple(opened.enter_context(_bound(host, port, shared=True)) for _ in range(relays))
        for one in clients:
            one.listen(descriptors.backlog())
        folder = Path(tempfile.mkdtemp(prefix="isochrone-"))  # for this user alone
        opened.callback(shutil.rmtree, folder)
        brain = opened.enter_context(socket.socket(socket.AF_UNIX))
        brain.bind(str(folder / "brain"))
        brain.listen(relays)
        opened.pop_all()  # all went well: nothing is closed
    return Sockets(clients, brain, admin, folder)


def _bound(host: str, port: int, what: str = "", shared: bool = False) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"{what}cannot listen on {host}:{port}: {error.strerror or error}") from None
    return made


Body = Callable[[Ties], int]
"""What a process does, and its exit status."""


@dataclass(slots=True)
class Process:
    """One process that is wanted."""

    name: str
    body: Body
    pid: int = 0
    """0: there is none."""
    starts: int = 0
    failures: int = 0
    """Early deaths in a row."""
    started_at: Instant = 0
    due: Instant = 0
    """When it is started next."""
    beats: int = -1
    """Where its beats are read."""
    heard_at: Instant | None = None
    """When its last one was; None: it has not begun."""


class Supervisor:
    """Runs until it is told to stop, or until a process cannot be kept up."""

    def __init__(
        self,
        sockets: Sockets,
        brain: Callable[[int, Ties], int],
        relay: Callable[[int, Ties], int],
        hung_s_max: float,
    ) -> None:
        """`brain(epoch, ties)` and `relay(number, ties)` run in processes of their own, and return an exit status."""
        self._sockets = sockets
        self._hung_s_max = hung_s_max
        self._brain = Process(BRAIN, lambda ties: brain(self._brain.starts, ties))
        self._relays = [
            Process(f"relay-{number}", lambda ties, number=number: relay(number, ties))  # type: ignore[misc]  # bound early
            for number in range(len(sockets.clients))
        ]
        self._looked_at: Instant = 0
        self._pipe = (-1, -1)
        self._status = 0
        self._stopping = False
        self._brain_told = False

    def run(self, last_s: float) -> int:
        """The exit status: 0 after a wanted stop. `last_s`: from the signal to SIGKILL."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._pipe = os.pipe()
        gc.collect()
        gc.freeze()  # no collection need copy the pages that all share
        give_up_at: Instant | None = None
        try:
            while not self._stopping or self._alive():
                now = clock.now()
                self._listen(now)
                self._keep_up(now)
                if self._stopping:
                    give_up_at = give_up_at or now + nanoseconds(last_s)
                    if now > give_up_at:
                        self._send(signal.SIGKILL, *self._alive())
                told = signal.sigtimedwait(SIGNALS, self._pause_s(now, give_up_at))
                self._reap()
                if told is not None:
                    self._told(told.si_signo)
        finally:
            self._send(signal.SIGKILL, *self._alive())  # none, unless something went wrong here
            self._sockets.keep()
            shutil.rmtree(self._sockets.folder, ignore_errors=True)
        return self._status

    def _alive(self) -> list[Process]:
        return [one for one in (self._brain, *self._relays) if one.pid]

    def _listen(self, now: Instant) -> None:
        """Take in beats, and end who has fallen silent."""
        late = now - self._looked_at > nanoseconds(BEAT_S + LATE_S)
        self._looked_at = now
        for one in self._alive():
            try:
                beats = os.read(one.beats, BEATS_READ)
            except BlockingIOError:
                beats = b""
            if beats or (late and one.heard_at is not None):
                one.heard_at = now
            elif one.heard_at is not None and now - one.heard_at > nanoseconds(self._hung_s_max):
                log.error("%s (process %d) hangs: no beat for %g s", one.name, one.pid, self._hung_s_max)
                self._send(signal.SIGKILL, one)

    def _keep_up(self, now: Instant) -> None:
        """Start what is due; while stopping, let the brain go once the relays are gone."""
        if not self._stopping:
            for one in (self._brain, *self._relays):
                if not one.pid and one.due <= now:
                    self._start(one, now)
        elif not self._brain_told and not any(relay.pid for relay in self._relays):
            self._brain_told = True
            self._send(signal.SIGTERM, self._brain)

    def _pause_s(self, now: Instant, give_up_at: Instant | None) -> float:
        """Until something is due; at most until the next beats."""
        due = [one.due for one in (self._brain, *self._relays) if not one.pid and not self._stopping]
        if give_up_at is not None:
            due.append(give_up_at)
        return max(0.001, (min([*due, now + nanoseconds(BEAT_S)]) - now) / SECOND)

    def _told(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            log.info("stopping: requests that run are let end")
            self._stop()
        elif number == signal.SIGHUP:
            self._send(signal.SIGHUP, self._brain)

    def _stop(self) -> None:
        self._stopping = True
        for one in (*self._sockets.clients, self._sockets.admin):
            one.close()  # the relays close theirs: from here on connections are refused
        self._send(signal.SIGTERM, *self._relays)

    def _send(self, number: int, *processes: Process) -> None:
        for one in processes:
            if one.pid:
                os.kill(one.pid, number)

    def _reap(self) -> None:
        """Note who has ended."""
        for one in self._alive():
            pid, status = os.waitpid(one.pid, os.WNOHANG)
            if pid:
                one.pid, one.heard_at = 0, None
                os.close(one.beats)
                self._ended(one, os.waitstatus_to_exitcode(status))

    def _ended(self, one: Process, status: int) -> None:
        if self._stopping:
            return
        now = clock.now()
        steady = now - one.started_at > nanoseconds(STEADY_S)
        one.failures = 0 if steady else one.failures + 1
        if (status == CANNOT_START and one.starts == 1) or one.failures > FAILURES_MAX:
            log.error("%s cannot be kept up (exit status %d)", one.name, status)
            self._status = 1
            self._stop()
            return
        pause_s = min(PAUSE_S_FIRST * 2 ** (one.failures - 2), PAUSE_S_MAX) if one.failures > 1 else 0.0
        one.due = now + nanoseconds(pause_s)
        log.warning("%s has ended (exit status %d); starting it again in %g s", one.name, status, pause_s)

    def _start(self, one: Process, now: Instant) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        beats, beat = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        pid = os.fork()
        if not pid:
            self._be(one, Ties(self._pipe[0], beat))
        os.close(beat)
        one.beats = beats
        one.pid, one.started_at = pid, now
        one.starts += 1
        log.info("%s is process %d", one.name, pid)

    def _be(self, one: Process, ties: Ties) -> NoReturn:
        """In the new process: do its work and end, without anything that belongs to the supervisor."""
        status = 1
        try:
            os.close(self._pipe[1])
            for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C reaches us all; the supervisor says what to do
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            _name(one.name)
            status = one.body(ties)
            sys.stdout.flush()
        except BaseException:
            log.exception("%s failed", one.name)
        finally:
            os._exit(status)


def _name(name: str) -> None:
    """What `ps -o comm` shows; best effort."""
    try:
        Path("/proc/self/comm").write_text(f"iso-{name}")
    except OSError:
        log.debug("the process cannot be named %s", name)
