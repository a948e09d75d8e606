"""Frames arrive as they were sent, however the socket cuts the bytes."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from isochrone.config.driver import Link, Tls
from isochrone.gateway.workers import channel as channels
from isochrone.gateway.workers import frames
from isochrone.gateway.workers.channel import Channel
from isochrone.nouns.commands import Abort, Dispatch, Fail, Limits
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import Adopted, Arrived, ClientLeft, Ended, Outcome, Progress
from isochrone.nouns.instance import InstanceSpec
from isochrone.nouns.request import PromptSize, Request, Slo, Usage

REQUEST = Request(
    id="r", model="m", path="/v1/chat/completions", stream=True, size=PromptSize(7, 3, 1, 0, 2), blocks=(2**64 - 1, 5),
    hashed_bytes=99, max_tokens=5, slo=Slo(1.5, None, True), tenant="t", key="key-1", session="s",
)  # fmt: skip
UP = [
    frames.Hello(1, 77, (frames.Member(InstanceSpec(id="a", url="http://a"), Link("k", Tls("ca"), ("*",)), True),)),
    frames.Announced(), frames.TurnedAway("r", "/p", "t", "k", "code", 400),
    frames.Report({"x": [(("a", "b"), 1.5)]}, True, 3, 0.5, 1000), Arrived(REQUEST, 1, 2), ClientLeft("r"),
    Adopted(request=REQUEST, attempt=2**63, instance="a", ordinal=2, relay=1, epoch=2, arrived_at=1, dispatched_at=2,
            said_tokens=3),
    Ended(2**63, Outcome.LOST, True, 200, Usage(1, 2, None, "stop"), 9, None, "why", True), Progress(5, 32),
]  # fmt: skip
DOWN = [
    frames.Welcome(3, "text"), frames.Reloaded("text"), frames.Left("a"), frames.Serving({"m": None}, True),
    frames.Granted("r", b"x: 1\r\n"), frames.Over("r"), Dispatch("r", 2**63, "a", Limits(gap_s=None), 2, True, 4096),
    Fail("r", ApiError(503, "t", "c", "m", None, 1)), Fail("r"), Abort(2**63, "why", True),
]  # fmt: skip


class Written:
    """A transport that keeps what is written."""

    def __init__(self, behind: int = 0) -> None:
        self.data = b""
        self.behind = behind
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return self.behind

    def abort(self) -> None:
        self.aborted = True


def made(kind: object, taken: Callable[[Channel, list[Any]], None], transport: Written) -> Channel:
    channel = Channel(msgspec.msgpack.Decoder(list[kind]), taken, lambda _: None)  # type: ignore[valid-type]
    channel.connection_made(transport)  # type: ignore[arg-type]
    return channel


async def sent(batches: list[list[object]]) -> bytes:
    """What a channel writes for these, one batch a turn of the loop."""
    written = Written()
    channel = made(frames.FromRelay, lambda _, batch: None, written)
    for batch in batches:
        for frame in batch:
            channel.send(frame)
        await asyncio.sleep(0)
    return written.data


@given(st.data())
def test_any_split_gives_the_same_frames(data: st.DataObject) -> None:
    frames_of, kind = data.draw(st.sampled_from([(UP, frames.FromRelay), (DOWN, frames.FromBrain)]))
    batches = data.draw(st.lists(st.lists(st.sampled_from(frames_of), min_size=1, max_size=8), max_size=4))
    written = asyncio.run(sent(batches))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=12)))
    came: list[list[object]] = []
    channel = made(kind, lambda _, batch: came.append(batch), Written())
    for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True):
        channel.data_received(written[start:end])
    assert came == batches


def test_who_takes_nothing_or_sends_too_much_is_cut() -> None:
    async def test() -> None:
        slow = Written(behind=channels.BEHIND_BYTES_MAX + 1)
        channel = made(frames.FromRelay, lambda _, batch: None, slow)
        channel.send(frames.Announced())
        await asyncio.sleep(0)
        assert slow.aborted
        channel.send(frames.Announced())  # nobody is there any more
        channel.flush()
        loud = Written()
        channel = made(frames.FromRelay, lambda _, batch: None, loud)
        channel.data_received((channels.BATCH_BYTES_MAX + 1).to_bytes(4, "big"))
        assert loud.aborted

    asyncio.run(test())
