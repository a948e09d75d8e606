"""What ties a process to its supervisor: it hears when that is gone, and shows that it is not stuck itself."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

BEAT_S = 1.0
"""Between two beats."""


@dataclass(frozen=True, slots=True)
class Ties:
    """Two pipes."""

    supervisor: int
    """Its end says that the supervisor is gone."""
    beat: int
    """A byte every BEAT_S says that the event loop runs."""

    def follow(self, alone: Callable[[], None]) -> None:
        """`alone` is called when the supervisor is gone. Needs a running event loop."""
        asyncio.get_running_loop().add_reader(self.supervisor, self._gone, alone)

    def begin(self) -> None:
        """This process is up, and shows from now on that its event loop runs."""
        try:
            os.write(self.beat, b".")
        except BlockingIOError:  # the supervisor stands still
            pass
        except BrokenPipeError:
            return
        asyncio.get_running_loop().call_later(BEAT_S, self.begin)

    def _gone(self, alone: Callable[[], None]) -> None:
        asyncio.get_running_loop().remove_reader(self.supervisor)
        alone()
