"""A byte stream through two ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from hum_workers.llama_rpc_worker.stream import End
from tests.llama_rpc_worker.doors import WAIT, ended

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Told(End):
    """An end that says when something came."""

    def __init__(self) -> None:
        super().__init__()
        self.got = asyncio.Event()

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        super().data_received(data, datatype)
        self.got.set()


class Middle:
    """A stream's two ends, each at a socket whose other side the test has."""

    def __init__(self, near: tuple[Told, Streams], far: tuple[Told, Streams]) -> None:
        self.near, (self.near_reader, self.near_writer) = near
        self.far, (self.far_reader, self.far_writer) = far


async def a_side() -> tuple[Told, Streams]:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, end = await loop.create_connection(Told, sock=ours)
    return end, await asyncio.open_connection(sock=theirs)


@pytest.fixture
async def middle() -> AsyncIterator[Middle]:
    sides = Middle(await a_side(), await a_side())
    yield sides
    for end in (sides.near, sides.far):
        end.abort()
    for writer in (sides.near_writer, sides.far_writer):
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    for end in (sides.near, sides.far):
        await asyncio.wait_for(end.over, WAIT)


async def test_bytes_go_both_ways_and_are_counted(middle: Middle) -> None:
    middle.near.join(middle.far)
    middle.near_writer.write(b"there")
    assert await middle.far_reader.readexactly(5) == b"there"
    middle.far_writer.write(b"back")
    assert await middle.near_reader.readexactly(4) == b"back"
    assert (middle.near.received, middle.far.received) == (5, 4)


async def test_what_comes_before_the_other_end_is_kept(middle: Middle) -> None:
    middle.near_writer.write(b"early")
    middle.near_writer.write_eof()
    await asyncio.wait_for(middle.near.got.wait(), WAIT)
    middle.near.join(middle.far)
    assert await ended(middle.far_reader) == b"early"


async def test_half_a_stream_may_be_over(middle: Middle) -> None:
    middle.near.join(middle.far)
    middle.near_writer.write(b"question")
    middle.near_writer.write_eof()
    assert await ended(middle.far_reader) == b"question"
    middle.far_writer.write(b"answer")
    middle.far_writer.close()
    assert await ended(middle.near_reader) == b"answer"
    await asyncio.wait_for(middle.near.over, WAIT)
    await asyncio.wait_for(middle.far.over, WAIT)


async def test_an_end_that_breaks_breaks_the_other(middle: Middle) -> None:
    middle.near.join(middle.far)
    middle.near.abort()
    await asyncio.wait_for(middle.far.over, WAIT)
    assert await ended(middle.far_reader) == b""


async def test_an_end_that_is_gone_before_it_is_joined_closes_the_other(middle: Middle) -> None:
    middle.near.abort()
    await asyncio.wait_for(middle.near.over, WAIT)
    middle.near.join(middle.far)
    await asyncio.wait_for(middle.far.over, WAIT)


async def test_whoever_does_not_read_holds_up_the_sender_and_no_memory(middle: Middle) -> None:
    middle.near.join(middle.far)
    size = 32 * 1024 * 1024
    middle.near_writer.write(bytes(size))
    received = -1
    while middle.near.received != received:
        received = middle.near.received
        for _ in range(50):
            await asyncio.sleep(0)
    assert received < size / 8
    assert len(await middle.far_reader.readexactly(size)) == size
