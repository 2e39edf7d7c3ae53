"""The door of a slice: what those do there who are let in."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import asyncssh
import pytest

from hum_workers.errors import UsageError
from hum_workers.llama_rpc_worker.door import Door
from hum_workers.llama_rpc_worker.facts import SliceState
from hum_workers.llama_rpc_worker.questions import MOST_BYTES, SUBSYSTEM
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.thrum.identity import hid_of
from tests.llama_rpc_worker.doors import (
    ANN,
    BEN,
    NOWHERE,
    SLICE,
    WAIT,
    Desk,
    Peer,
    ended,
    linked,
    opened,
    proven,
    stranger,
)


async def talk(connection: asyncssh.SSHClientConnection, text: bytes, answers: int) -> list[Any]:
    """Sends text to a session of questions and returns so many answers; fewer at its end."""
    writer, reader, _ = await connection.open_session(subsystem=SUBSYSTEM, encoding=None)
    writer.write(text)
    found: list[Any] = []
    async with asyncio.timeout(WAIT):
        while len(found) < answers and (line := await reader.readline()):
            found.append(json.loads(line))
    return found


async def test_nothing_of_ssh_works_but_questions() -> None:
    async with opened(Desk()) as door, proven(door) as connection:
        for how in ({"command": "id"}, {}, {"subsystem": "sftp"}, {"subsystem": "hum-other"}):
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.open_session(**how)
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_connection("127.0.0.1", door.port)
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_unix_connection("/run/x")
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_tun()
        with pytest.raises(asyncssh.ChannelListenError):
            await connection.forward_remote_port("127.0.0.1", 0, "127.0.0.1", 1)
        assert len(await talk(connection, b'{"ask":"describe","id":5}\n', 1)) == 1


async def test_a_question_that_can_not_be_read_ends_nothing() -> None:
    async with opened(Desk()) as door, proven(door) as connection:
        first, second = await talk(connection, b'rubbish\n{"ask":"describe","id":5}\n', 2)
    assert first["id"] == 0
    assert first["refused"].startswith("the question can't be read")
    assert second["facts"]["memory"] == 2


async def test_a_question_without_end_ends_its_session_alone() -> None:
    async with opened(Desk()) as door, proven(door) as connection:
        assert await talk(connection, b"x" * (MOST_BYTES + 1), 1) == []
        assert len(await talk(connection, b'{"ask":"describe","id":5}\n', 1)) == 1


async def test_who_asks_and_never_reads_is_cut_off() -> None:
    async with opened(Desk()) as door, proven(door) as connection:
        writer, _, _ = await connection.open_session(
            subsystem=SUBSYSTEM, encoding=None, window=1024
        )
        async with asyncio.timeout(WAIT):
            with contextlib.suppress(BrokenPipeError):
                while True:
                    writer.write(b'{"ask":"describe","id":5}\n' * 100)
                    await writer.drain()
                    await asyncio.sleep(0)
        assert len(await talk(connection, b'{"ask":"describe","id":5}\n', 1)) == 1


async def test_sessions_are_counted() -> None:
    async with opened(Desk(), sessions=1) as door, proven(door) as connection:
        _, reader, _ = await connection.open_session(subsystem=SUBSYSTEM, encoding=None)
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_session(subsystem=SUBSYSTEM, encoding=None)
        reader.channel.close()
        await reader.channel.wait_closed()
        assert len(await talk(connection, b'{"ask":"describe","id":5}\n', 1)) == 1


async def test_only_the_leases_holder_reaches_rpc_server() -> None:
    async with Peer() as rpc:
        desk = Desk(rpc.address)
        async with opened(desk, ANN, BEN) as door, linked(door.port, BEN) as holder:
            await holder.lease((0, 4), "f00d")
            assert desk.book.lease is not None
            async with proven(door) as connection:
                with pytest.raises(asyncssh.ChannelOpenError, match="lease is over: wbee_"):
                    await connection.open_connection(desk.book.lease.token, 0)
        assert rpc.came.empty()


async def test_an_rpc_server_that_is_not_there_is_said() -> None:
    desk = Desk()
    async with opened(desk) as door, proven(door) as connection:
        token = desk.lease(hid_of(ANN), (0, 4), "f00d", "")
        with pytest.raises(asyncssh.ChannelOpenError, match="rpc-server does not answer"):
            await connection.open_connection(token, 0)


async def test_streams_are_counted() -> None:
    async with Peer() as rpc:
        desk = Desk(rpc.address)
        async with opened(desk, streams=2) as door, proven(door) as connection:
            token = desk.lease(hid_of(ANN), (0, 4), "f00d", "")
            for _ in range(2):
                await connection.open_connection(token, 0)
            with pytest.raises(asyncssh.ChannelOpenError, match="more than 2 streams"):
                await connection.open_connection(token, 0)
            for _ in range(2):
                _, writer = await rpc.accept()
                writer.close()


async def test_a_lost_connection_takes_its_streams_and_leaves_the_lease() -> None:
    async with Peer() as rpc:
        desk = Desk(rpc.address)
        async with opened(desk) as door:
            token = desk.lease(hid_of(ANN), (0, 4), "f00d", "")
            async with proven(door) as connection:
                await connection.open_connection(token, 0)
                reader, _ = await rpc.accept()
                connection.abort()
                assert await ended(reader) == b""
            assert desk.book.state is SliceState.LEASED


async def test_the_end_of_a_lease_ends_its_streams() -> None:
    async with Peer() as rpc:
        desk = Desk(rpc.address)
        async with opened(desk) as door, proven(door) as connection:
            token = desk.lease(hid_of(ANN), (0, 4), "f00d", "")
            await connection.open_connection(token, 0)
            reader, _ = await rpc.accept()
            release = json.dumps({"ask": "release", "id": 1, "token": token}).encode()
            (answer,) = await talk(connection, release + b"\n", 1)
            assert answer["facts"]["state"] == "recycling"
            assert await ended(reader) == b""


async def test_closing_the_door_ends_what_came_in_by_it_and_frees_the_port() -> None:
    async with Peer() as rpc:
        desk = Desk(rpc.address)
        trust = Trust([hid_of(ANN)], NOWHERE)
        async with opened(desk) as door:
            async with linked(door.port) as link, stranger(door.port) as (silent, _):
                await link.lease((0, 4), "f00d")
                _, writer = await asyncio.open_connection("127.0.0.1", await link.forward())
                reader, _ = await rpc.accept()
                await door.close()
                assert await ended(reader) == b""
                assert await ended(silent) == b""
                writer.close()
            again = await Door.open(SLICE, ("127.0.0.1", door.port), trust, desk)
            await again.close()


async def test_a_port_that_is_taken_is_one_sentence() -> None:
    async with Peer() as other:
        host, port = other.address
        with pytest.raises(UsageError, match=rf"can't listen at {host}:{port}: .* .rpc. listen"):
            await Door.open(SLICE, (host, port), Trust([], NOWHERE), Desk())
