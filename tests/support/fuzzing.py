"""What the fuzz tests share: how many examples, bytes cut anywhere, a transport that only takes notes."""

import asyncio
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("ISOCHRONE_FUZZ_EXAMPLES", "200"))
"""Of each test; `make fuzz` takes 100,000."""

fuzzed = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
"""Speed and size of examples are no fault here."""

cuts = st.lists(st.integers(0, 3000), max_size=12) | st.just(list(range(3000)))
"""Places where the network cuts; the last: each byte comes alone."""


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in order, cut at these places. No piece is empty: a transport gives none."""
    ends = sorted({place for place in places if 0 < place < len(data)})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True) if end > start]


class Notes(asyncio.Transport):
    """A connection whose other side takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "written to after its close"
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The other side goes on sending."""

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def pause_reading(self) -> None:
        """What is to come is in the test's hands."""

    def resume_reading(self) -> None:
        """The same."""
