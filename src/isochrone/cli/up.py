"""`isochrone up`: engines and a gateway on this machine, started together and looked after."""

import asyncio
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from isochrone.adapters.vllm_launch import SHUTDOWN_TIMEOUT_S, Launch, VllmNotFound, find_vllm, vllm_launch
from isochrone.cli.plugins import load_policies
from isochrone.config.problems import nearest
from isochrone.gateway.logfile import LogFile
from isochrone.gateway.supervise import News, Program, supervise
from isochrone.scheduling import policies

GATEWAY_STAGE, ENGINE_STAGE = 0, 1
ENGINE_STOP_S_MAX = SHUTDOWN_TIMEOUT_S + 10.0
"""SIGTERM to SIGKILL for an engine: its own limit for running requests, and some more to leave."""
GATEWAY_STOP_S_MAX = 75.0
"""SIGTERM to SIGKILL for the gateway, which drains for at most 60 s (`drain_s_max`)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for."""

    engine: str
    model: str
    served_name: str
    replicas: int
    port: int
    admin_port: int
    policy: str | None
    """None: what the gateway takes by itself, or from a file that `--serve-arg` names."""
    engine_port: int
    engine_args: tuple[str, ...]
    serve_args: tuple[str, ...]
    vllm_bin: str | None
    accelerators_each: int
    logs: Path


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on right now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def own_command(*arguments: str) -> tuple[str, ...]:
    """Another command of this program, run by the same Python."""
    return (sys.executable, "-m", "isochrone.cli.main", *arguments)


def engine_launch(wanted: Wanted, replica: int, port: int) -> Launch:
    """Command line of one engine."""
    if wanted.engine == "emulated":
        flags = ("--host", "127.0.0.1", "--port", str(port), "--count", "1", "--model", wanted.served_name)
        return Launch((*own_command("emulate"), *flags, *wanted.engine_args), {})
    vllm = find_vllm(wanted.vllm_bin, os.environ)
    return vllm_launch(
        vllm,
        wanted.model,
        wanted.served_name,
        port,
        replica,
        os.environ,
        wanted.engine_args,
        wanted.accelerators_each,
    )


@dataclass(frozen=True, slots=True)
class Ports:
    """Where everything will serve."""

    gateway: int
    admin: int
    engines: tuple[int, ...]


def choose_ports(wanted: Wanted) -> Ports:
    """The ports asked for, and free ones where none was."""
    gateway, admin, *engines = free_ports(2 + wanted.replicas)
    if wanted.engine_port:
        engines = [wanted.engine_port + replica for replica in range(wanted.replicas)]
    return Ports(wanted.port or gateway, wanted.admin_port or admin, tuple(engines))


def check_free(ports: Sequence[int]) -> None:
    """Better one clear word now than five starts that fail. Raises ValueError."""
    for port in ports:
        with socket.socket() as each:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                each.bind(("127.0.0.1", port))
            except OSError as error:
                raise ValueError(f"port {port}: {error.strerror}") from None


def programs(wanted: Wanted, ports: Ports) -> list[Program]:
    """The gateway and the engines. All start at once: the gateway finds each engine as it becomes ready."""
    engines = [engine_program(wanted, replica, port) for replica, port in enumerate(ports.engines)]
    return [gateway_program(wanted, ports, [engine.url for engine in engines]), *engines]


def gateway_program(wanted: Wanted, ports: Ports, engine_urls: Sequence[str]) -> Program:
    """`isochrone serve` in front of the engines."""
    flags = ["--port", str(ports.gateway), "--admin-port", str(ports.admin)]
    if wanted.policy is not None:
        flags += ["--policy", wanted.policy]
    for url in engine_urls:
        flags += ["--instance", url]
    url = f"http://127.0.0.1:{ports.gateway}"
    return Program(
        name="gateway",
        argv=own_command("serve", *flags, *wanted.serve_args),
        environment={},
        url=url,
        ready_url=f"{url}/ready",
        log=LogFile(wanted.logs / "gateway.log"),
        stage=GATEWAY_STAGE,
        stop_s_max=GATEWAY_STOP_S_MAX,
    )


def engine_program(wanted: Wanted, replica: int, port: int) -> Program:
    """One engine, as the supervisor wants it."""
    launch = engine_launch(wanted, replica, port)
    name = f"engine-{replica + 1}"
    return Program(
        name=name,
        argv=launch.argv,
        environment=launch.environment,
        url=f"http://127.0.0.1:{port}",
        ready_url=f"http://127.0.0.1:{port}/health",
        log=LogFile(wanted.logs / f"{name}.log"),
        stage=ENGINE_STAGE,
        stop_s_max=ENGINE_STOP_S_MAX,
    )


def plan(wanted: Wanted, ports: Ports, as_lines: bool) -> str:
    """The first line: where everything will be."""
    gateway, admin = f"http://127.0.0.1:{ports.gateway}", f"http://127.0.0.1:{ports.admin}"
    if not as_lines:
        return (
            f"gateway {gateway}, admin {admin}, model {wanted.served_name}, output in {wanted.logs}/ (Ctrl-C stops all)"
        )
    engines = {f"engine-{i + 1}": f"http://127.0.0.1:{port}" for i, port in enumerate(ports.engines)}
    planned = {"gateway": gateway, "admin": admin, "engines": engines, "model": wanted.served_name}
    return json.dumps({"name": "up", "event": "planned", **planned})


def as_json(news: News, log: Path) -> str:
    """One line for programs."""
    fields: dict[str, object] = {"at": datetime.now(UTC).isoformat(timespec="milliseconds")}
    fields |= {"name": news.name, "event": news.event, "url": news.url, "pid": news.pid, "log": str(log)}
    fields |= {"seconds": news.seconds, "code": news.code, "last_lines": list(news.last_lines) or None}
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def as_text(news: News, log: Path) -> str:
    """One line for people, or some more where a process has died."""
    said = {
        "started": f"starting (log: {log})",
        "ready": f"ready after {news.seconds or 0:.1f} s: {news.url}",
        "slow": f"not ready after {news.seconds or 0:.0f} s (log: {log})",
        "exited": f"ended with status {news.code} (log: {log})",
        "restarting": f"starts again in {news.seconds or 0:.0f} s",
        "given_up": "given up: starting again does not help",
        "stopping": "stopping",
        "killed": "did not stop in time: killed",
        "stopped": f"stopped after {news.seconds or 0:.1f} s",
    }[news.event]
    lines = [f"{datetime.now():%H:%M:%S} {news.name:<10} {said}"]
    return "\n".join([*lines, *(f"{'':>20}{line}" for line in news.last_lines)])


async def run(wanted: Wanted, as_lines: bool) -> int:
    """Supervise until a signal comes. The first asks for an orderly stop, the second for an immediate one."""
    ports = choose_ports(wanted)
    check_free((ports.gateway, ports.admin, *ports.engines))
    all_programs = programs(wanted, ports)
    click.echo(plan(wanted, ports, as_lines))
    logs = {program.name: program.log.path for program in all_programs}
    stop, now = asyncio.Event(), asyncio.Event()

    def tell(news: News) -> None:
        click.echo((as_json if as_lines else as_text)(news, logs[news.name]))

    def signalled() -> None:
        (now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    return await supervise(all_programs, tell, stop, now)


def split(arguments: Sequence[str]) -> tuple[str, ...]:
    """Each given argument may hold several, quoted as in a shell."""
    return tuple(part for argument in arguments for part in shlex.split(argument))


@click.command()
@click.option(
    "--engine",
    type=click.Choice(["vllm", "emulated"]),
    default="vllm",
    show_default=True,
    help="What to start: vLLM, or engines that need no GPU.",
)
@click.option("--model", help="Folder or name of the model that vLLM loads; emulated engines need none.")
@click.option("--served-name", help="Name that clients use. [default: last part of --model, else 'emulated']")
@click.option("--replicas", type=click.IntRange(1, 64), default=2, show_default=True, help="Engines to start.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Gateway; 0: a free one.")
@click.option(
    "--admin-port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="Its admin API; 0: a free one."
)
@click.option("--engine-port", type=click.IntRange(0, 65000), default=0, help="The first engine's; 0: free ones.")
@click.option("--policy", metavar="NAME", help="As in `isochrone serve`.")
@click.option("--engine-arg", multiple=True, metavar="ARGS", help="More for each engine's command line; repeatable.")
@click.option("--serve-arg", multiple=True, metavar="ARGS", help="More for `isochrone serve`; repeatable.")
@click.option("--vllm-bin", help="The vllm command. [default: $ISOCHRONE_VLLM_BIN, PATH, then that of `make vllm`]")
@click.option("--gpus-per-replica", type=click.IntRange(1, 64), default=1, show_default=True, help="For vLLM only.")
@click.option(
    "--logs",
    type=click.Path(path_type=Path, file_okay=False),
    default="logs",
    show_default=True,
    help="Folder for the output of each process.",
)
@click.option("--json", "as_lines", is_flag=True, help="One JSON object a line for each thing that happens.")
def command(
    engine: str,
    model: str | None,
    served_name: str | None,
    replicas: int,
    port: int,
    admin_port: int,
    engine_port: int,
    policy: str | None,
    engine_arg: tuple[str, ...],
    serve_arg: tuple[str, ...],
    vllm_bin: str | None,
    gpus_per_replica: int,
    logs: Path,
    as_lines: bool,
) -> None:
    """Start engines and a gateway together and look after them.

    \b
      isochrone up --engine vllm --model ~/models/qwen3-8b --replicas 2
      isochrone up --engine emulated --replicas 4 --engine-arg "--profile h100-8b"
      isochrone up --engine emulated --serve-arg "--config isochrone.yaml"

    Output of each process goes to a file of its own. A process that ends is started again. Ctrl-C stops the gateway
    first, which lets running requests end, and then the engines; a second Ctrl-C stops all at once.
    """
    if engine == "vllm" and not model:
        raise click.UsageError("--engine vllm needs --model, a folder or a name that vLLM can load.")
    if engine == "vllm" and model and model[0] in "/.~" and not Path(model).expanduser().is_dir():
        raise click.BadParameter(f"{model}: there is no such folder", param_hint="--model")
    load_policies()
    if policy is not None and not policies.exists(policy):
        raise click.BadParameter(
            f"{policy!r}: no such policy; {nearest(policy, policies.names())}", param_hint="--policy"
        )
    wanted = Wanted(
        engine=engine,
        model=model or "emulated",
        served_name=served_name or Path(model or "emulated").name,
        replicas=replicas,
        port=port,
        admin_port=admin_port,
        policy=policy,
        engine_port=engine_port,
        engine_args=split(engine_arg),
        serve_args=split(serve_arg),
        vllm_bin=vllm_bin,
        accelerators_each=gpus_per_replica,
        logs=logs,
    )
    try:
        sys.exit(asyncio.run(run(wanted, as_lines)))
    except (VllmNotFound, ValueError) as error:
        raise click.ClickException(str(error)) from None
