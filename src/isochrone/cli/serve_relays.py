"""`isochrone serve --workers N`: what each of the processes does. `gateway/workers` says who they are."""

import asyncio
import gc
import logging
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import click
import uvloop

from isochrone.cli.serving import Told, serve
from isochrone.config.build import Configuration
from isochrone.config.problems import ConfigError
from isochrone.gateway.service import Seat, StartError
from isochrone.gateway.workers.relay import Relay
from isochrone.gateway.workers.supervisor import CANNOT_START, Supervisor, open_sockets
from isochrone.gateway.workers.ties import Ties

LAST_S = 10.0
"""After `drain_s_max`: how long processes may take to end."""

log = logging.getLogger("isochrone.service")


class Source(Protocol):
    """Reads the configuration file, or takes its text. Raises ConfigError."""

    def __call__(self, text: str | None = None) -> Configuration: ...


def run(configuration: Configuration, file: Path | None, source: Source) -> int:
    """Run until told to stop; the exit status. StartError where an address is taken."""
    plan = configuration.file
    try:
        sockets = open_sockets(plan.listen.host, plan.listen.port, plan.admin.host, plan.admin.port, plan.workers.count)
    except OSError as error:
        raise StartError(error.strerror or str(error)) from None

    supervisor = os.getpid()

    def brain(epoch: int, ties: Ties) -> int:
        seat = Seat(epoch, sockets.relays, sockets.admin, sockets.port)
        sockets.keep(sockets.relays, sockets.admin)
        mine = _as_it_is_now(configuration, source) if epoch else configuration
        status = _status(lambda: uvloop.run(serve(mine, file, source, seat, ties)))
        if os.getppid() != supervisor:  # it was killed, and cannot clear up itself
            shutil.rmtree(sockets.folder, ignore_errors=True)
        return status

    def relay(number: int, ties: Ties) -> int:
        listener = sockets.clients[number]
        sockets.keep(listener)
        return _status(lambda: uvloop.run(_carry(configuration, source, number, sockets.brain, listener, ties)))

    return Supervisor(sockets, brain, relay, plan.workers.hung_s_max).run(configuration.settings.drain_s_max + LAST_S)


def _as_it_is_now(configuration: Configuration, source: Source) -> Configuration:
    """The file as it is now: it may have been taken up anew since the start."""
    if configuration.text is None:
        return configuration
    try:
        return source()
    except ConfigError as error:
        log.error("the configuration of the start is taken: %s", error)
        return configuration


def _status(work: Callable[[], None]) -> int:
    try:
        work()
    except StartError as error:
        click.echo(f"Error: {error}", err=True)
        return CANNOT_START
    return 0


async def _carry(
    configuration: Configuration, source: Source, number: int, brain: str, listener: socket.socket, ties: Ties
) -> None:
    """A relay, until it is told to stop; then its running requests end first. A second signal cuts them."""
    told = Told(ties)
    loop = asyncio.get_running_loop()
    relay = Relay(configuration, source, number, brain)
    start = loop.create_task(relay.start(listener))
    stopping = loop.create_task(told.stopping.wait())
    await asyncio.wait((start, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        return
    start.result()
    told.up()
    gc.collect()
    gc.freeze()  # what was made at the start stays: no collection need look at it again
    await stopping
    stop = loop.create_task(relay.stop())
    cut = loop.create_task(told.cutting.wait())
    await asyncio.wait((stop, cut), return_when=asyncio.FIRST_COMPLETED)
    if not stop.done():
        await relay.gateway.close()
    cut.cancel()
    await stop
