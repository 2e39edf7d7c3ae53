"""A socket that plays humd by hand: each connection is a `Peer` that a test reads and writes."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any, Self

LIMIT = 16 * 1024 * 1024


class Peer:
    """One connection of a bee, as humd sees it. Every read gives up after 5 s."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def tone(self) -> dict[str, Any]:
        """Returns the next tone; raises EOFError at the end."""
        async with asyncio.timeout(5):
            line = await self._reader.readline()
        if not line:
            raise EOFError
        tone: dict[str, Any] = json.loads(line)
        return tone

    async def at_end(self) -> bool:
        """Waits for the end of what the bee sends; True if nothing came before it."""
        async with asyncio.timeout(5):
            return not await self._reader.read()

    async def say(self, *tones: dict[str, Any]) -> None:
        await self.raw(b"".join(json.dumps(tone).encode() + b"\n" for tone in tones))

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(10):
            await self._writer.drain()

    async def echo(self, tone: dict[str, Any]) -> None:
        await self.say({"chi": "echo", "rid": tone["rid"], "ok": True})

    def half_close(self) -> None:
        self._writer.write_eof()

    def hang_up(self) -> None:
        self._writer.transport.abort()


class Listener:
    """Listens on `path` inside its `async with`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._open: list[Peer] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._meet, str(self.path), limit=LIMIT)

    def close(self) -> None:
        """Stops listening and hangs up on all; the socket file stays, as humd leaves it."""
        assert self._server is not None
        self._server.close()
        for peer in self._open:
            peer.hang_up()

    async def peer(self) -> Peer:
        """Returns the next connection."""
        async with asyncio.timeout(5):
            return await self._peers.get()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._open.append(peer)
        self._peers.put_nowait(peer)


class Deaf:
    """A humd that accepts one bee and takes nothing from its socket until told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._server.setblocking(False)
        self._peer: socket.socket | None = None
        self._rest = b""

    def close(self) -> None:
        self._server.close()
        if self._peer is not None:
            self._peer.close()

    async def accept(self) -> None:
        async with asyncio.timeout(5):
            self._peer, _ = await asyncio.get_running_loop().sock_accept(self._server)

    async def take(self) -> list[dict[str, Any]]:
        """Returns the tones of one read, waiting for the first."""
        assert self._peer is not None
        async with asyncio.timeout(5):
            data = await asyncio.get_running_loop().sock_recv(self._peer, 4 * LIMIT)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
