"""Greetings: the real rpc-server, and by fakes what it does not show on demand."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.tender import rpc
from hum_workers.tender.rpc import Fault, Probed, RpcError, probe
from tests.llama_rpc_worker.real_llama import ABSENT, RPC_SERVER

SOON = 0.2
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(talk: Talk) -> AsyncIterator[int]:
    """A port where each client is talked to; `talk` ends before the port does."""
    talks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


def answer(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def speaking(*version: int, devices: int = 1, extra: bytes = b"") -> Talk:
    """An rpc-server of this version."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(9)
            command, length = struct.unpack("<BQ", head)
            body = await reader.readexactly(length)
            if command == rpc.HELLO:
                assert body == bytes(24)
                writer.write(answer(bytes([*version, 0]) + bytes(24)))
            elif command == rpc.DEVICE_COUNT:
                writer.write(answer(struct.pack("<I", devices)))
            else:
                (index,) = struct.unpack("<I", body)
                writer.write(answer(struct.pack("<QQ", 100 + index, 200 + index)))

    return talk


def saying(data: bytes, *, then: str = "close") -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if then == "wait":
            await asyncio.Event().wait()
        await reader.readexactly(33)

    return talk


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def fault(
    port: int,
    host: str = "127.0.0.1",
    timeout: float = 20,
    *,
    own: tuple[int, int, int] | None = None,
) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await probe(host, port, timeout, own=own)
    assert f"{host}:{port}" in str(caught.value)
    return caught.value


async def test_a_server_says_its_version_and_the_memory_of_each_device() -> None:
    async with listening(speaking(7, 0, 3, devices=2)) as port:
        found = await probe("127.0.0.1", port)
    assert found.protocol == (7, 0, 3)
    assert [(one.name, one.free, one.total) for one in found.devices] == [
        ("RPC0", 100, 200),
        ("RPC1", 101, 201),
    ]


def test_the_loop_of_the_tender_asks_as_well() -> None:
    async def both() -> None:
        async with listening(speaking(7, 0, 0)) as port:
            assert (await probe("localhost", port)).protocol == (7, 0, 0)
        async with listening(silent) as port:
            assert (await fault(port, timeout=SOON)).kind is Fault.BUSY
        assert (await fault(1)).kind is Fault.REFUSED

    uvloop.run(both())


async def test_a_name_is_looked_up() -> None:
    async with listening(speaking(7, 0, 0)) as port:
        assert (await probe("localhost", port)).protocol == (7, 0, 0)


async def test_where_nothing_listens_is_refused() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        assert (await fault(taken.getsockname()[1])).kind is Fault.REFUSED


async def test_a_host_that_nobody_knows_is_unreachable() -> None:
    assert (await fault(1, "no-such-host.invalid")).kind is Fault.UNREACHABLE


async def test_a_full_backlog_is_unreachable() -> None:
    with closing(socket.socket()) as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        clients = [socket.socket() for _ in range(4)]
        try:
            for client in clients:
                client.setblocking(False)
                client.connect_ex(full.getsockname())
            found = await fault(full.getsockname()[1], timeout=SOON)
        finally:
            for client in clients:
                client.close()
    assert found.kind is Fault.UNREACHABLE


async def test_one_that_says_nothing_is_busy() -> None:
    async with listening(silent) as port:
        assert (await fault(port, timeout=SOON)).kind is Fault.BUSY


async def test_one_that_stops_after_its_greeting_is_busy() -> None:
    async with listening(saying(answer(bytes(28)), then="wait")) as port:
        assert (await fault(port, timeout=SOON)).kind is Fault.BUSY


@pytest.mark.parametrize(
    "talk",
    [
        saying(b"SSH-2.0-OpenSSH_9.2p1\r\n", then="wait"),
        saying(answer(b"\x07\x00\x00"), then="wait"),
        saying(struct.pack("<Q", 2**64 - 1), then="wait"),
        saying(b""),
        saying(answer(bytes(28))[:20]),
    ],
)
async def test_other_services_are_no_rpc(talk: Talk) -> None:
    async with listening(talk) as port:
        assert (await fault(port)).kind is Fault.NOT_RPC


async def test_one_that_begins_to_speak_and_stops_is_no_rpc() -> None:
    async with listening(saying(b"HTTP", then="wait")) as port:
        assert (await fault(port, timeout=2)).kind is Fault.NOT_RPC


async def test_an_absurd_number_of_devices_is_no_rpc() -> None:
    async with listening(speaking(7, 0, 0, devices=2**31)) as port:
        assert (await fault(port)).kind is Fault.NOT_RPC


@pytest.mark.parametrize("version", [(6, 0, 0), (7, 1, 0), (8, 0, 0), (3, 6, 0), (7, 0, 3)])
async def test_only_the_very_same_version_is_compatible(version: tuple[int, int, int]) -> None:
    async with listening(speaking(*version)) as port:
        found = await fault(port, own=(7, 0, 0))
        assert found.kind is Fault.INCOMPATIBLE
        assert ".".join(map(str, version)) in str(found)
        assert (await probe("127.0.0.1", port, own=version)).protocol == version


async def test_whoever_gives_up_resets_the_connection() -> None:
    """A normal end would leave the greeting in the queue, and its answer would kill the server."""
    ends: asyncio.Queue[object] = asyncio.Queue()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await ends.put(await reader.read(100))
            await ends.put(await reader.read(100))
        except ConnectionError as error:
            await ends.put(error)

    async with listening(talk) as port:
        task = asyncio.create_task(probe("127.0.0.1", port, 30))
        assert await ends.get() == rpc.hello()
        task.cancel()
        assert isinstance(await ends.get(), ConnectionResetError)
        await asyncio.gather(task, return_exceptions=True)
        assert (await fault(port, timeout=SOON)).kind is Fault.BUSY
        assert await ends.get() == rpc.hello()
        assert isinstance(await ends.get(), ConnectionResetError)


@given(st.integers(0, 255), st.binary(max_size=40))
def test_a_request_is_read_as_it_was_written(command: int, body: bytes) -> None:
    data = rpc.encode(command, body)
    assert rpc.decode(data) == (command, body)
    for broken in (data[:-1], data + b"x"):
        with pytest.raises(ValueError, match="bytes"):
            rpc.decode(broken)


def test_a_greeting_is_the_one_of_the_facts_page() -> None:
    assert rpc.hello().hex() == "0e" + "1800000000000000" + "00" * 24
    assert rpc.device_count().hex() == "0f" + "00" * 8
    assert rpc.device_memory(1).hex() == "0b" + "0400000000000000" + "01000000"


@asynccontextmanager
async def real_server() -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    assert RPC_SERVER is not None
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        RPC_SERVER, "-p", str(port), "-t", "1", stdin=null, stdout=null, stderr=null
    )
    try:
        yield process, port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def answered(port: int) -> Probed:
    async with asyncio.timeout(20):
        while True:
            try:
                return await probe("127.0.0.1", port)
            except RpcError as error:
                if error.kind is not Fault.REFUSED:
                    raise
                await asyncio.sleep(0.02)


@pytest.mark.skipif(RPC_SERVER is None, reason=ABSENT)
async def test_the_real_one_answers_and_outlives_fifty_probes() -> None:
    async with real_server() as (process, port):
        found = await answered(port)
        assert found.protocol > (6, 0, 0)
        (device,) = found.devices
        assert device.total >= device.free > 1 << 20
        for _ in range(50):
            assert (await probe("127.0.0.1", port, own=found.protocol)).protocol == found.protocol
        assert process.returncode is None


@pytest.mark.skipif(RPC_SERVER is None, reason=ABSENT)
async def test_the_real_one_in_use_or_frozen_is_busy_and_survives_that_it_was_asked() -> None:
    async with real_server() as (process, port):
        await answered(port)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await fault(port, timeout=SOON)).kind is Fault.BUSY
        writer.close()
        await writer.wait_closed()
        await answered(port)
        os.kill(process.pid, signal.SIGSTOP)
        assert (await fault(port, timeout=SOON)).kind is Fault.BUSY
        os.kill(process.pid, signal.SIGCONT)
        await answered(port)
        assert process.returncode is None
