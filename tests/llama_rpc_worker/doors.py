"""Doors, links and what is between them, for tests: real sockets, a clock that tests move."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import asyncssh

from hum_workers.llama_rpc_worker import ssh
from hum_workers.llama_rpc_worker.door import Door
from hum_workers.llama_rpc_worker.facts import Build, Device, Layers, SliceFacts
from hum_workers.llama_rpc_worker.lease import LeaseBook
from hum_workers.llama_rpc_worker.questions import VERSION
from hum_workers.llama_rpc_worker.slice_link import SliceLink
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.llama_rpc_worker.visitor import DoorLimits
from hum_workers.thrum.identity import hid_of

SLICE, ANN, BEN = (bytes([number]) * 32 for number in (1, 2, 3))
"""Seeds of three bees."""
NOWHERE = Path("/nonexistent")
WAIT = 20.0
Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Desk:
    """A slice whose process is always there; `moved` seconds have been added to its clock."""

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 1)) -> None:
        self.book = LeaseBook()
        self.book.ready()
        self.rpc = address
        self.moved = 0.0
        self.renewals = 0
        self.renewed = asyncio.Event()

    def facts(self) -> SliceFacts:
        return SliceFacts(
            hid=hid_of(SLICE),
            name="near",
            build=Build(commit="11434-1a2b3c4d", digest="0123456789abcdef", protocol=(7, 0, 0)),
            devices=(Device(name="CPU", free=3, total=4),),
            memory=2,
            state=self.book.state,
            holder=self.book.holder,
        )

    def lease(self, holder: str, layers: Layers, fingerprint: str, life: str) -> str:
        return self.book.grant(holder, layers, fingerprint, self._now(), life).token

    def renew(self, holder: str, token: str) -> None:
        self.book.renew(holder, token, self._now())
        self.renewals += 1
        self.renewed.set()

    def release(self, holder: str, token: str) -> None:
        self.book.release(holder, token, self._now())

    def address(self, holder: str, token: str) -> tuple[str, int]:
        self.book.held(holder, token, self._now())
        return self.rpc

    async def next_renewal(self) -> None:
        """Returns after one more renewal."""
        self.renewed.clear()
        await asyncio.wait_for(self.renewed.wait(), WAIT)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() + self.moved


@contextlib.asynccontextmanager
async def opened(desk: Desk, *named: bytes, **limits: Any) -> AsyncIterator[Door]:
    """A door that lets in the bees with these seeds."""
    trust = Trust([hid_of(seed) for seed in named or (ANN,)], NOWHERE)
    door = await Door.open(SLICE, ("127.0.0.1", 0), trust, desk, DoorLimits(**limits))
    try:
        yield door
    finally:
        await door.close()


@contextlib.asynccontextmanager
async def linked(port: int, seed: bytes = ANN, **how: Any) -> AsyncIterator[SliceLink]:
    """A link of a bee to the door at this port, connected."""
    link = a_link(port, seed, **how)
    try:
        await link.connect()
        yield link
    finally:
        await link.close()


def a_link(port: int, seed: bytes = ANN, **how: Any) -> SliceLink:
    """A link that is not connected."""
    hid = how.pop("hid", hid_of(SLICE))
    return SliceLink(seed, ("127.0.0.1", port), hid, Trust([], NOWHERE), **how)


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


class Peer:
    """A stand-in for rpc-server: says which connections came, and gives them to the test."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._come, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns the next connection."""
        return await asyncio.wait_for(self.came.get(), WAIT)

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.came.put_nowait((reader, writer))


class Wire(Peer):
    """A network between link and door: can be cut, and keeps what the link sent.

    While `stall` is cleared nothing is passed on.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self.sent = bytearray()
        self.plugged = True
        self.stall = asyncio.Event()
        self.stall.set()
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where the link goes."""
        return self.address[1]

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self.stall.set()
        await super().__aexit__()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Breaks every connection, and lets none through until `plugged` is set."""
        self.plugged = False
        for writer in self._writers:
            writer.transport.abort()

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.plugged:
            self._spawn(self._pass(reader, writer))
        else:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(far_writer)
        self._spawn(self._pump(reader, far_writer, self.sent.extend))
        self._spawn(self._pump(far_reader, writer, lambda data: None))

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        note: Callable[[bytes], None],
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                note(data)
                await self.stall.wait()
                writer.write(data)
        writer.close()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Returns what still came before the other side closed or broke the connection."""
    data = bytearray()
    with contextlib.suppress(ConnectionError):
        while more := await asyncio.wait_for(reader.read(1 << 16), WAIT):
            data += more
    return bytes(data)


def unused_port() -> int:
    """A loopback port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Losses:
    """Remembers what `on_lost` was told."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._any = asyncio.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self._any.set()

    async def one(self) -> str:
        """Returns the reason of the loss, when there is one."""
        await asyncio.wait_for(self._any.wait(), WAIT)
        return self.reasons[0]
