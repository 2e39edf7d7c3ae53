"""The door of a slice: who comes in, what they may do there, and what strangers cost."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncssh
import pytest
from structlog.testing import capture_logs

from hum_workers.errors import SliceError, UsageError
from hum_workers.llama_rpc_worker import ssh
from hum_workers.llama_rpc_worker.door import Door
from hum_workers.llama_rpc_worker.facts import SliceState
from hum_workers.llama_rpc_worker.questions import MOST_BYTES, SUBSYSTEM, VERSION
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
    Wire,
    a_link,
    ended,
    linked,
    opened,
)

Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def stranger(port: int) -> AsyncIterator[Raw]:
    """A plain connection to the door, its greeting read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        assert await reader.readline() == b"SSH-2.0-hum_slice_1\r\n"
        yield reader, writer
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def proven(door: Door, **how: Any) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A client of the plain library with Ann's key, to do what a link never does."""
    options = {"client_keys": [ssh.key_of(ANN)], "username": "x", **ssh.narrowed(), **how}
    options.setdefault("client_version", VERSION)
    async with asyncssh.connect(
        "127.0.0.1", door.port, known_hosts=None, agent_path=None, **options
    ) as connection:
        yield connection


async def talk(connection: asyncssh.SSHClientConnection, text: bytes, answers: int) -> list[Any]:
    """Sends text to a session of questions and returns so many answers; fewer at its end."""
    writer, reader, _ = await connection.open_session(subsystem=SUBSYSTEM, encoding=None)
    writer.write(text)
    found: list[Any] = []
    async with asyncio.timeout(WAIT):
        while len(found) < answers and (line := await reader.readline()):
            found.append(json.loads(line))
    return found


async def test_hids_are_the_hashes_of_the_keys_that_are_shown() -> None:
    for seed in (SLICE, ANN):
        key = ssh.key_of(seed).convert_to_public()
        assert ssh.hid_of_key(key) == hid_of(seed)
    assert ssh.hid_of_key(asyncssh.generate_private_key("ecdsa-sha2-nistp256")) is None
    assert hid_of(SLICE) == "wbee_" + hashlib.sha256(key_bytes(SLICE)).hexdigest()


def key_bytes(seed: bytes) -> bytes:
    return ssh.key_of(seed).convert_to_public().public_data[-32:]


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x0e" + (24).to_bytes(8, "little") + bytes(24) + b"\n",
        b"SSH-1.5-old\r\n",
        b"SSH-2.0-x\r\n" + b"\xff" * 4096,
        b"SSH-2.0-x\r\n" + bytes(4096),
        b"SSH-2.0-\xff\xfe\r\n",
        b"x" * 10_000,
        b"\n" * 10_000,
    ],
    ids=["http", "rpc", "old", "huge", "zeros", "latin", "long", "empty"],
)
async def test_whoever_speaks_rubbish_is_out_at_once(words: bytes) -> None:
    async with opened(Desk(), prove=1000, speak=1000) as door:
        async with stranger(door.port) as (reader, writer):
            writer.write(words)
            await ended(reader)
        async with linked(door.port) as link:
            assert await link.describe()


async def test_whoever_says_nothing_is_out_soon() -> None:
    async with opened(Desk(), prove=1000, speak=0.05) as door:
        async with stranger(door.port) as (reader, _):
            await ended(reader)


async def test_whoever_is_of_another_version_is_out_soon() -> None:
    async with opened(Desk(), prove=1000, speak=0.05) as door:
        async with stranger(door.port) as (reader, writer):
            writer.write(b"SSH-2.0-hum_slice_99\r\n")
            await ended(reader)
    async with opened(Desk(), prove=1000, speak=1000) as door:
        with pytest.raises(asyncssh.Error):
            async with proven(door, client_version="hum_slice_99"):
                pass


async def test_each_stranger_is_told_of_in_one_line_and_a_storm_in_few() -> None:
    with capture_logs() as entries:
        async with opened(Desk(), speak=0.05, arrivals=0.01, visitors=1) as door:
            for _ in range(40):
                reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
                await ended(reader)
                writer.transport.abort()
    told = [entry for entry in entries if entry["event"] == "worker.door.refused"]
    assert told[0]["reason"] == "it said nothing for 0.05 s"
    assert {entry["reason"] for entry in told[1:]} == {"too many connections come from there"}
    assert 16 <= len(told) <= 20


async def test_whoever_greets_and_proves_nothing_is_out_later() -> None:
    async with opened(Desk(), prove=0.2, speak=0.05) as door:
        async with stranger(door.port) as (reader, writer):
            writer.write(f"SSH-2.0-{VERSION}\r\n".encode())
            await ended(reader)


async def test_a_replayed_greeting_opens_nothing() -> None:
    desk = Desk()
    async with opened(desk) as door, Wire(door.port) as wire:
        async with linked(wire.port) as link:
            await link.lease((0, 4), "f00d")
            await link.release()
        desk.book.recycled()
        async with stranger(door.port) as (reader, writer):
            writer.write(bytes(wire.sent))
            await ended(reader)
        assert desk.book.state is SliceState.FREE


async def test_another_key_is_refused_and_the_hid_to_add_is_named() -> None:
    async with opened(Desk()) as door:
        with pytest.raises(SliceError, match=f"add {hid_of(BEN)} to .rpc. coordinators") as caught:
            await a_link(door.port, BEN).connect()
        assert caught.value.problem == "not_let_in"


@pytest.mark.parametrize("method", ["password", "keyboard-interactive", "hostbased"])
async def test_there_is_no_other_way_to_prove_oneself(method: str) -> None:
    async with opened(Desk()) as door:
        with pytest.raises(asyncssh.PermissionDenied):
            async with proven(door, preferred_auth=[method], password="hum"):
                pass


async def test_keys_of_other_kinds_are_refused() -> None:
    async with opened(Desk()) as door:
        other = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
        with pytest.raises(asyncssh.PermissionDenied):
            async with proven(door, client_keys=[other], signature_algs=()):
                pass


async def test_who_tries_many_keys_is_out() -> None:
    async with opened(Desk(), tries=3) as door:
        keys = [ssh.key_of(bytes([number]) * 32) for number in range(100, 110)] + [ssh.key_of(ANN)]
        with pytest.raises((asyncssh.ConnectionLost, asyncssh.PermissionDenied)):
            async with proven(door, client_keys=keys):
                pass


async def test_the_oldest_stranger_makes_room_for_a_new_one() -> None:
    async with opened(Desk(), strangers=2, speak=1000, prove=1000) as door:
        async with stranger(door.port) as (oldest, _), stranger(door.port) as (newer, _):
            async with linked(door.port) as link:
                assert await link.describe()
                assert await ended(oldest) == b""
                assert not newer.at_eof()


async def test_a_storm_of_strangers_is_turned_away_before_it_costs_anything() -> None:
    async with opened(Desk(), arrivals=0.001, visitors=2) as door:
        async with stranger(door.port), stranger(door.port):
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            assert await ended(reader) == b""
            writer.close()


async def test_more_proven_visitors_than_there_is_room_for_are_turned_away() -> None:
    async with opened(Desk(), visitors=2) as door:
        async with linked(door.port) as first, linked(door.port) as second:
            with pytest.raises(SliceError):
                await a_link(door.port).connect()
            assert await first.describe()
            assert await second.describe()


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
