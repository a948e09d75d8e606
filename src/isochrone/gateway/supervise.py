"""Start processes, see them become ready, start dead ones again, stop them in order.

Each process has one task that lives as long as the process is wanted: start -> ready -> wait for its end -> pause ->
start. Pauses double from one failure to the next and begin anew after a steady run; after too many failures in a row,
or a failure that another start cannot mend, the process is given up. A process that hangs is not this file's business:
the gateway's heartbeats see that.

Stopping goes stage by stage, lowest first, so that the gateway (stage 0) has let the running requests end before the
engines (stage 1) get their SIGTERM. A process that outlives its patience gets SIGKILL, together with what it started.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from isochrone.gateway.logfile import LogFile

COMMAND_NOT_FOUND = 127
"""The exit status that shells and setpriv give for it."""
WRONG_USAGE = 2
"""The exit status of click, argparse and many others for a command line that they do not understand."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process that is wanted."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    """Beside the inherited variables."""
    url: str
    """Where it serves."""
    ready_url: str
    """Answers 200 once the process can do its work."""
    log: LogFile
    stage: int
    stop_s_max: float
    """From SIGTERM to SIGKILL."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Every wait of the supervisor, in seconds."""

    poll_s: float = 0.25
    """Between two looks at whether a process is ready."""
    answer_s: float = 2.0
    """For one answer to such a look."""
    slow_s: float = 300.0
    """A start that takes longer is mentioned (never cut off: large models load for many minutes)."""
    pause_s_first: float = 1.0
    pause_s_max: float = 60.0
    steady_s: float = 60.0
    """Ready for this long: failures before it are forgotten."""
    failures_max: int = 5
    """In a row; then the process is given up."""
    log_check_s: float = 5.0


@dataclass(frozen=True, slots=True)
class News:
    """One thing that happened to a process."""

    name: str
    event: str
    """`started`, `ready`, `slow`, `exited`, `restarting`, `given_up`, `stopping`, `killed`, `stopped`."""
    url: str
    pid: int | None = None
    seconds: float | None = None
    """Start to ready, or the pause before a restart, or SIGTERM to the end."""
    code: int | None = None
    """Exit status; -9 means ended by signal 9."""
    last_lines: tuple[str, ...] = ()


async def answers_200(url: str, timeout_s: float) -> bool:
    """One GET on a connection of its own."""
    address = urlsplit(url)
    assert address.hostname is not None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                writer.write(
                    f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode()
                )
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return status.split()[1:2] == [b"200"]


def loop_time() -> float:
    """Seconds on the event loop's clock."""
    return asyncio.get_running_loop().time()


def dies_with_us(argv: Sequence[str]) -> tuple[str, ...]:
    """The same command, sent SIGTERM by the kernel should this process die without a chance to stop it."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "TERM", *argv) if setpriv else tuple(argv)


class Watched:
    """One program, its process of the moment, and its record of failures."""

    def __init__(self, program: Program, patience: Patience, tell: Callable[[News], None]) -> None:
        self.program = program
        self.given_up = False
        self._patience = patience
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._failures = 0
        self._ready_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """There is a process that has not ended."""
        return self._process is not None and self._process.returncode is None

    def begin(self) -> asyncio.Task[None]:
        """Start the program and keep it running; the task ends when it is stopped or given up."""
        self._task = asyncio.create_task(self._keep(), name=self.program.name)
        return self._task

    async def stop(self) -> None:
        """SIGTERM, wait, SIGKILL. Returns once the process is gone."""
        self._stopping = True
        process, began = self._process, loop_time()
        if process is not None and self.alive:
            self._news("stopping", pid=process.pid)
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self.program.stop_s_max)
            except TimeoutError:
                self._news("killed", pid=process.pid)
                self.kill()
                await process.wait()
            self.kill()
            self._news("stopped", seconds=loop_time() - began, code=process.returncode)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def kill(self) -> None:
        """SIGKILL to the process and to all that it started: they share a process group that it leads. Called at once
        after its end, too: the number of a group without members may be given to a stranger, later."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    async def _keep(self) -> None:
        while True:
            code = await self._run_once()
            if self._stopping:
                return
            self._news("exited", code=code, last_lines=tuple(self.program.log.last_lines(5)))
            if code in (COMMAND_NOT_FOUND, WRONG_USAGE) or not await self._pause():
                self.given_up = True
                self._news("given_up")
                return

    async def _run_once(self) -> int:
        """From a start to the end that follows, however it comes."""
        try:
            process = await self._start()
        except OSError as error:
            self.program.log.add(f"cannot start: {error}\n")
            return COMMAND_NOT_FOUND
        ready = asyncio.create_task(self._wait_ready(process))
        try:
            return await self._wait_end(process)
        finally:
            ready.cancel()
            self.kill()  # an engine's helpers must not outlive it: they hold memory and maybe its port

    async def _start(self) -> asyncio.subprocess.Process:
        program = self.program
        output = program.log.open()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *dies_with_us(program.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **program.environment},
                start_new_session=True,  # Ctrl-C in the terminal reaches us alone; we stop the others in order
            )
        finally:
            os.close(output)
        self._ready_at = None
        self._news("started", pid=self._process.pid)
        return self._process

    async def _wait_ready(self, process: asyncio.subprocess.Process) -> None:
        began, mentioned, patience = loop_time(), False, self._patience
        while not await answers_200(self.program.ready_url, patience.answer_s):
            taken = loop_time() - began
            if taken > patience.slow_s and not mentioned:
                mentioned = True
                self._news("slow", pid=process.pid, seconds=taken, last_lines=tuple(self.program.log.last_lines(1)))
            await asyncio.sleep(patience.poll_s)
        self._ready_at = loop_time()
        self._news("ready", pid=process.pid, seconds=self._ready_at - began)

    async def _wait_end(self, process: asyncio.subprocess.Process) -> int:
        while True:
            try:
                return await asyncio.wait_for(process.wait(), self._patience.log_check_s)
            except TimeoutError:
                self.program.log.trim()

    async def _pause(self) -> bool:
        """Wait before the next start; False: no next start."""
        patience = self._patience
        if self._ready_at is not None and loop_time() - self._ready_at > patience.steady_s:
            self._failures = 0
        self._failures += 1
        if self._failures > patience.failures_max:
            return False
        pause_s = min(patience.pause_s_first * 2 ** (self._failures - 1), patience.pause_s_max)
        self._news("restarting", seconds=pause_s)
        await asyncio.sleep(pause_s)
        return True

    def _news(
        self,
        event: str,
        pid: int | None = None,
        seconds: float | None = None,
        code: int | None = None,
        last_lines: tuple[str, ...] = (),
    ) -> None:
        self._tell(News(self.program.name, event, self.program.url, pid, seconds, code, last_lines))


async def supervise(
    programs: Sequence[Program],
    tell: Callable[[News], None],
    stop: asyncio.Event,
    now: asyncio.Event,
    patience: Patience | None = None,
) -> int:
    """Run all until `stop` is set, then stop them stage by stage; `now` set: SIGKILL at once. Returns an exit code:
    0 after a wanted stop, 1 where every program of some stage was given up."""
    watched = [Watched(program, patience or Patience(), tell) for program in programs]
    tasks = [each.begin() for each in watched]
    stopped = asyncio.create_task(stop.wait())
    try:
        lost = await _until_stopped_or_lost(watched, tasks, stopped)
    finally:
        stopped.cancel()
        await _stop_in_order(watched, now)
    return 1 if lost else 0


async def _until_stopped_or_lost(
    watched: Sequence[Watched], tasks: Sequence["asyncio.Task[None]"], stopped: "asyncio.Task[bool]"
) -> bool:
    pending: set[asyncio.Task[None] | asyncio.Task[bool]] = {stopped, *tasks}
    while stopped in pending:
        ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # a mistake in this file must not pass as a quiet process
        stages: dict[int, bool] = {}
        for each in watched:
            stages[each.program.stage] = stages.get(each.program.stage, True) and each.given_up
        if any(stages.values()):
            return True
    return False


async def _stop_in_order(watched: Sequence[Watched], now: asyncio.Event) -> None:
    hurry = asyncio.create_task(_kill_when(watched, now))
    try:
        for stage in sorted({each.program.stage for each in watched}):
            await asyncio.gather(*(each.stop() for each in watched if each.program.stage == stage))
    finally:
        hurry.cancel()
        for each in watched:
            if each.alive:
                each.kill()


async def _kill_when(watched: Sequence[Watched], now: asyncio.Event) -> None:
    await now.wait()
    for each in watched:
        if each.alive:
            each.kill()
