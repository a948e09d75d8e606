"""A gateway that runs until signals say otherwise: in one process, or as the brain of several relays."""

import asyncio
import gc
import signal
from pathlib import Path

import click

from isochrone import __version__
from isochrone.config.build import Configuration
from isochrone.gateway.reload import Source, reload_when_told
from isochrone.gateway.service import Seat, Service, StartError
from isochrone.gateway.workers.ties import Ties


class Told:
    """What this process has been told by signals. Needs a running event loop."""

    def __init__(self, ties: Ties | None = None) -> None:
        """`ties`: to a supervisor, which alone hears Ctrl-C."""
        self._ties = ties
        self.stopping = asyncio.Event()
        self.cutting = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT) if ties is None else (signal.SIGTERM,):
            loop.add_signal_handler(number, self._stop)
        if ties is not None:
            ties.follow(self.stopping.set)

    def up(self) -> None:
        """This process has started."""
        if self._ties is not None:
            self._ties.begin()

    def _stop(self) -> None:
        (self.cutting if self.stopping.is_set() else self.stopping).set()


async def serve(
    configuration: Configuration,
    file: Path | None = None,
    source: Source | None = None,
    seat: Seat | None = None,
    ties: Ties | None = None,
) -> None:
    """Run until SIGTERM or SIGINT, then drain; a second signal cuts what still runs. SIGHUP reads the file anew.

    `seat`: clients are taken in by relays. `ties`: to the supervisor that started this process.
    """
    told = Told(ties)
    loop = asyncio.get_running_loop()
    service = Service(configuration, source, seat)
    try:
        await service.start()
    except StartError:
        await service.stop(0.0)
        raise
    told.up()
    ready = loop.create_task(_say_ready(service, seat))
    gc.collect()
    gc.freeze()  # what was made at the start stays: no collection need look at it again
    reloads = follow(service, file) if file is not None else None
    await told.stopping.wait()
    ready.cancel()
    if reloads is not None:
        reloads.cancel()
    if seat is None:
        click.echo(
            f"Draining {len(service.gateway.brain.requests)} open requests "
            f"(at most {configuration.settings.drain_s_max:g} s) ...",
            err=True,
        )
    stop = loop.create_task(service.stop())
    cut = loop.create_task(told.cutting.wait())
    await asyncio.wait((stop, cut), return_when=asyncio.FIRST_COMPLETED)
    if not stop.done():
        await service.gateway.close()
    cut.cancel()
    await stop


def follow(service: Service, file: Path) -> "asyncio.Task[None]":
    """Read the file anew at SIGHUP, and when it changes where that is asked for."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, told.set)
    every_s = service.configuration.file.watch_file_s
    return asyncio.get_running_loop().create_task(reload_when_told(service.reload, told, file, every_s))


async def _say_ready(service: Service, seat: Seat | None) -> None:
    """Once, at the first start."""
    if service.relays is not None:
        await service.relays.complete.wait()
    if seat is None or seat.epoch == 0:
        click.echo(ready_line(service), err=service.configuration.file.access_log == "-")


def ready_line(service: Service) -> str:
    """One line that says where everything is."""
    file = service.configuration.file
    count, relays = len(service.configuration.instances), file.workers.count
    scheme = "http" if file.listen.tls.cert is None else "https"
    placed = f"{file.policy}" + (f" (shadow {file.shadow})" if file.shadow else "")
    return (
        f"isochrone {__version__}: {placed} over {count} instance{'' if count == 1 else 's'}, "
        f"serving {scheme}://{file.listen.host}:{service.port}{f' by {relays} relays' if relays > 1 else ''}, "
        f"admin http://{file.admin.host}:{service.admin_port}"
    )
