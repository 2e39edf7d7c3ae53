"""The gate between a socket and its SSH connection."""

from __future__ import annotations

import asyncio

import pytest

from hum_workers.llama_rpc_worker.gate import BULK, MOST_EARLY, Gate
from tests.llama_rpc_worker.doors import WAIT


class Connection:
    """What a gate needs of a connection."""

    def __init__(self) -> None:
        self.user: str | None = None
        self.reads: list[int] = []
        self.aborted = False
        self.lost = asyncio.Event()
        self.transport: asyncio.BaseTransport | None = None

    def get_extra_info(self, name: str) -> str | None:
        assert name == "username"
        return self.user

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reads.append(len(data))

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def abort(self) -> None:
        self.aborted = True
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.abort()


async def through_gate(connection: Connection, size: int) -> None:
    """Sends so many bytes through a gate and waits for its end."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Gate(connection), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        writer.write(bytes(size))
        writer.write_eof()
        await asyncio.wait_for(connection.lost.wait(), WAIT)
    finally:
        writer.transport.abort()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("size", [MOST_EARLY + 1, 10 * MOST_EARLY])
async def test_a_stranger_that_sends_much_is_cut_off(size: int) -> None:
    connection = Connection()
    await through_gate(connection, size)
    assert connection.aborted
    assert sum(connection.reads) <= MOST_EARLY


async def test_a_stranger_may_say_what_a_greeting_needs() -> None:
    connection = Connection()
    await through_gate(connection, MOST_EARLY)
    assert not connection.aborted
    assert sum(connection.reads) == MOST_EARLY


async def test_a_proven_side_may_send_as_much_as_it_wants() -> None:
    connection = Connection()
    connection.user = "hum-slice"
    await through_gate(connection, 40 * MOST_EARLY)
    assert sum(connection.reads) == 40 * MOST_EARLY


async def test_after_a_large_read_others_have_their_turn() -> None:
    rounds: list[str] = []

    class Counting(Connection):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            rounds.append("large" if len(data) >= BULK else "small")
            asyncio.get_running_loop().call_soon(rounds.append, "turn")

    connection = Counting()
    connection.user = "hum-slice"
    await through_gate(connection, 200 * BULK)
    assert rounds.count("large") > 1
    following = [after for now, after in zip(rounds, rounds[1:], strict=False) if now == "large"]
    assert set(following) == {"turn"}
