"""Frames over a stream socket, in batches: four bytes of length, then a MessagePack list.

All that is sent in one turn of the event loop goes out in one write at its end, so a busy process pays one system call
for some dozens of frames.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec

LENGTH_BYTES = 4
BATCH_BYTES_MAX = 256 * 1024 * 1024
"""Largest batch that is taken; a longer one ends the connection."""
BEHIND_BYTES_MAX = 64 * 1024 * 1024
"""Written and not yet taken by the other side; above it the other side counts as dead."""

_encoder = msgspec.msgpack.Encoder()


class Channel(asyncio.Protocol):
    """One end. `taken` is called with each batch that comes, `lost` once, at the end."""

    def __init__(
        self,
        decoder: "msgspec.msgpack.Decoder[Any]",
        taken: Callable[["Channel", list[Any]], None],
        lost: Callable[["Channel"], None],
    ) -> None:
        self._decode = decoder.decode
        self._taken = taken
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._out: list[Any] = []
        """What this turn of the loop has to say."""
        self._due = False
        self._came = bytearray()
        """The beginning of a batch that is not whole yet."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, frame: object) -> None:
        """Say something at the end of this turn of the loop. To a closed channel: nothing happens."""
        self._out.append(frame)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what has gathered."""
        self._due = False
        frames, self._out = self._out, []
        transport = self._transport
        if transport is None or transport.is_closing() or not frames:
            return
        batch = bytearray(LENGTH_BYTES)
        _encoder.encode_into(frames, batch, LENGTH_BYTES)
        batch[:LENGTH_BYTES] = (len(batch) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
        transport.write(batch)
        if transport.get_write_buffer_size() > BEHIND_BYTES_MAX:
            transport.abort()

    def close(self) -> None:
        """Say the last words and close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit

    def data_received(self, data: bytes) -> None:
        if self._came:
            self._came += data
            data = bytes(self._came)
        start = 0
        while len(data) - start >= LENGTH_BYTES:
            length = int.from_bytes(data[start : start + LENGTH_BYTES], "big")
            if length > BATCH_BYTES_MAX:
                self.abort()
                return
            end = start + LENGTH_BYTES + length
            if end > len(data):
                break
            self._taken(self, self._decode(memoryview(data)[start + LENGTH_BYTES : end]))
            start = end
        self._came = bytearray(data[start:])

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost(self)
