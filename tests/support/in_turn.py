"""Scripts for a request that goes to several instances, whichever they are."""

import asyncio

from tests.support.fake_engine import FakeEngine, Script, Wire


class InTurn:
    """The first attempt gets the first script, the second the second, whichever engine they go to."""

    def __init__(self, *scripts: Script) -> None:
        self.wires: list[Wire] = []
        """Of each attempt."""
        self.where: list[FakeEngine] = []
        self._scripts = scripts
        self._came = asyncio.Event()

    def at(self, *engines: FakeEngine) -> None:
        """From now on these engines answer so."""
        for engine in engines:
            engine.script = self._at(engine)

    async def until(self, attempts: int) -> None:
        """Wait until so many have come."""
        while len(self.wires) < attempts:
            self._came.clear()
            await self._came.wait()

    def _at(self, engine: FakeEngine) -> Script:
        async def script(wire: Wire) -> None:
            self.wires.append(wire)
            self.where.append(engine)
            self._came.set()
            await self._scripts[len(self.wires) - 1](wire)

        return script


class Gate:
    """A script that waits until it is opened."""

    def __init__(self, then: Script) -> None:
        self.open = asyncio.Event()
        self._then = then

    async def __call__(self, wire: Wire) -> None:
        await self.open.wait()
        await self._then(wire)
