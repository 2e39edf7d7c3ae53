"""A slice that is stopped as somebody asked: its holder hears of it before anything breaks."""

from __future__ import annotations

import asyncio

import pytest

from hum_workers.errors import SliceError, SliceProblem
from hum_workers.llama_rpc_worker.questions import STOPPED
from tests.llama_rpc_worker.doors import WAIT, Desk, Peer, a_link, ended, linked, opened


async def test_the_holder_hears_that_the_slice_was_stopped_and_of_no_fault() -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    async with Peer() as rpc, opened(Desk(rpc.address)) as door:
        async with linked(door.port, on_lost=said.put_nowait, on_cut=said.put_nowait) as link:
            await link.lease((0, 4), "f00d")
            reader, writer = await asyncio.open_connection("127.0.0.1", await link.forward())
            _, far_writer = await rpc.accept()
            door.take_leave()
            far_writer.transport.abort()
            assert await asyncio.wait_for(said.get(), WAIT) == STOPPED
            assert await ended(reader) == b""
            assert not link.leased
            await door.close()
            writer.close()
        assert said.empty()


async def test_who_holds_nothing_is_not_told_and_nobody_is_let_in_any_more() -> None:
    said: list[str] = []
    async with opened(Desk()) as door:
        async with linked(door.port, on_lost=said.append, on_cut=said.append) as link:
            door.take_leave()
            assert (await link.describe()).name == "near"
            with pytest.raises(SliceError) as caught:
                await a_link(door.port).connect()
            assert caught.value.problem is SliceProblem.UNREACHABLE
    assert said == []
