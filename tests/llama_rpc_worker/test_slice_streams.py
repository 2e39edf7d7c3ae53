"""Byte streams through a coordinator's link: who gets one, what breaks it, what is said."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from unittest.mock import patch

import pytest

from hum_workers.llama_rpc_worker import ssh
from tests.llama_rpc_worker.doors import (
    Desk,
    Losses,
    Peer,
    Wire,
    ended,
    linked,
    opened,
)


async def test_processes_reach_rpc_server_by_a_port_of_this_host() -> None:
    async with Peer() as rpc, opened(Desk(rpc.address)) as door, linked(door.port) as link:
        await link.lease((0, 4), "f00d")
        port = await link.forward()
        assert await link.forward() == port
        for number in range(12):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello%d" % number)
            writer.write_eof()
            far_reader, far_writer = await rpc.accept()
            assert await ended(far_reader) == b"hello%d" % number
            far_writer.write(b"welcome")
            far_writer.close()
            assert await ended(reader) == b"welcome"
            writer.close()


@pytest.mark.parametrize("rekey", [ssh.REKEY_BYTES, 1 << 20])
async def test_bulk_goes_through_whole_in_both_directions(
    rekey: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "REKEY_BYTES", rekey)
    blob = os.urandom(1 << 20) * 12
    async with Peer() as rpc, opened(Desk(rpc.address)) as door, linked(door.port) as link:
        await link.lease((0, 4), "f00d")
        reader, writer = await asyncio.open_connection("127.0.0.1", await link.forward())
        far_reader, far_writer = await rpc.accept()
        writer.write(blob)
        far_writer.write(blob)
        there, back = await asyncio.gather(
            far_reader.readexactly(len(blob)), reader.readexactly(len(blob))
        )
        assert there == back == blob
        assert link.traffic == (len(blob), len(blob))
        writer.close()
        far_writer.close()
        assert await ended(reader) == b""
    assert link.traffic == (len(blob), len(blob))


async def test_without_a_lease_the_port_leads_nowhere() -> None:
    async with Peer() as rpc, opened(Desk(rpc.address)) as door, linked(door.port) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", await link.forward())
        assert await ended(reader) == b""
        writer.close()
        assert rpc.came.empty()


async def test_a_port_whose_door_refuses_breaks_the_connection() -> None:
    async with opened(Desk()) as door, linked(door.port) as link:
        await link.lease((0, 4), "f00d")
        reader, writer = await asyncio.open_connection("127.0.0.1", await link.forward())
        assert await ended(reader) == b""
        writer.close()


async def test_another_users_process_gets_nothing_from_the_port() -> None:
    async with Peer() as rpc, opened(Desk(rpc.address)) as door, linked(door.port) as link:
        await link.lease((0, 4), "f00d")
        port = await link.forward()
        with patch("os.geteuid", return_value=os.geteuid() + 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await ended(reader) == b""
        writer.close()
        assert rpc.came.empty()


async def test_whoever_resets_its_connection_at_once_leaves_nothing_behind() -> None:
    cuts = Losses()
    async with Peer() as rpc, opened(Desk(rpc.address)) as door:
        async with linked(door.port, on_cut=cuts) as link:
            await link.lease((0, 4), "f00d")
            port = await link.forward()
            held = len(os.listdir("/proc/self/fd"))
            reset = struct.pack("ii", 1, 0)
            for _ in range(40):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            far_reader, far_writer = await rpc.accept()
            far_writer.write(b"!")
            assert await reader.readexactly(1) == b"!"
            assert len(os.listdir("/proc/self/fd")) <= held + 4
            assert link.traffic == (0, 1)
            assert not cuts.reasons
            writer.transport.abort()
            await ended(far_reader)


async def test_a_stream_that_never_led_to_rpc_server_is_no_cut_one() -> None:
    cuts = Losses()
    async with opened(Desk()) as door, linked(door.port, on_cut=cuts) as link:
        await link.lease((0, 4), "f00d")
        reader, writer = await asyncio.open_connection("127.0.0.1", await link.forward())
        assert await ended(reader) == b""
        writer.close()
        await link.describe()
        assert not cuts.reasons


async def test_a_release_cuts_the_streams() -> None:
    async with Peer() as rpc, opened(Desk(rpc.address)) as door, linked(door.port) as link:
        await link.lease((0, 4), "f00d")
        reader, writer = await asyncio.open_connection("127.0.0.1", await link.forward())
        far_reader, _ = await rpc.accept()
        await link.release()
        assert await ended(reader) == b""
        assert await ended(far_reader) == b""
        writer.close()


async def test_a_network_loss_breaks_the_streams_on_both_sides() -> None:
    cuts = Losses()
    async with Peer() as rpc, opened(Desk(rpc.address)) as door, Wire(door.port) as wire:
        async with linked(wire.port, on_cut=cuts) as link:
            await link.lease((0, 4), "f00d")
            reader, writer = await asyncio.open_connection("127.0.0.1", await link.forward())
            far_reader, far_writer = await rpc.accept()
            far_writer.write(b"!")
            assert await reader.readexactly(1) == b"!"
            wire.cut()
            assert await ended(reader) == b""
            assert await ended(far_reader) == b""
            assert await cuts.one() == "its connection broke"
            writer.close()


async def test_an_rpc_server_that_dies_under_a_stream_is_said_at_once() -> None:
    cuts = Losses()
    async with Peer() as rpc, opened(Desk(rpc.address)) as door:
        async with linked(door.port, on_cut=cuts) as link:
            await link.lease((0, 4), "f00d")
            reader, writer = await asyncio.open_connection("127.0.0.1", await link.forward())
            _, far_writer = await rpc.accept()
            far_writer.write(b"!")
            assert await reader.readexactly(1) == b"!"
            far_writer.transport.abort()
            assert await cuts.one() == "rpc-server closed its stream"
            assert await ended(reader) == b""
            writer.close()
