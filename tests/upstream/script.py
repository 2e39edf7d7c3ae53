"""A server on a Unix socket that answers with given bytes, and a sink that keeps what it gets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hum_workers.errors import ErrorCode
from hum_workers.frames import Mmm
from hum_workers.tender.upstream import Upstream

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), more, body)


class Client:
    """One connection as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """Returns the next request; empty bytes when the client has left."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = re.search(rb"(?i)content-length: (\d+)", head)
        return head + (await self.reader.readexactly(int(length[1])) if length else b"")

    async def send(self, *parts: bytes) -> None:
        """Sends each part in a write of its own."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def left(self) -> None:
        """Waits until the client has closed the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Serve = Callable[[Client], Awaitable[None]]


class Server:
    """Serves the n-th connection with the n-th script, the last one for all that follow."""

    def __init__(self, *scripts: Serve) -> None:
        self._scripts = scripts
        self.connections = 0
        self.errors: list[BaseException] = []
        self._open: set[asyncio.Task[None] | None] = set()

    async def over(self) -> None:
        """Waits until every connection was served to its end."""
        await asyncio.gather(*filter(None, self._open), return_exceptions=True)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.connections, len(self._scripts) - 1)]
        self.connections += 1
        self._open.add(asyncio.current_task())
        try:
            await script(Client(reader, writer))
        except ConnectionError:
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    folder: Path, *scripts: Serve, **how: Any
) -> AsyncIterator[tuple[Upstream, Server]]:
    path = folder / "engine.sock"
    server = Server(*scripts)
    listener = await asyncio.start_unix_server(server, path, limit=1 << 20)
    upstream = Upstream(path, {"Authorization": "Bearer secret"}, **how)
    try:
        async with asyncio.timeout(10):
            yield upstream, server
    finally:
        await upstream.close()
        listener.close()
        await server.over()
    assert server.errors == []


class Turn:
    """What a sink got."""

    def __init__(self) -> None:
        self.events: list[tuple[Mmm, Any]] = []
        self.ended = asyncio.Event()
        self.grown = asyncio.Event()

    def __call__(self, kind: Mmm, data: Any) -> None:
        assert not self.ended.is_set()
        self.events.append((kind, data))
        self.grown.set()
        if kind in (Mmm.FINISH, Mmm.ERROR):
            self.ended.set()

    async def text(self, length: int) -> str:
        """Waits for so many characters."""
        while len(self.so_far()) < length:
            self.grown.clear()
            await self.grown.wait()
        return self.so_far()

    def so_far(self) -> str:
        return "".join(data for kind, data in self.events if kind is Mmm.TEXT)

    def error(self) -> tuple[ErrorCode, str]:
        kind, data = self.events[-1]
        assert kind is Mmm.ERROR, self.events
        return data["code"], data["message"]


async def turn(upstream: Upstream, body: bytes = b"{}") -> Turn:
    """One stream to its end."""
    got = Turn()
    stream = upstream.stream("/v1/chat/completions", body, got)
    await got.ended.wait()
    stream.close()
    return got


def answering(*parts: bytes, then: str = "keep") -> Serve:
    """Answers every request of a connection with these writes."""

    async def script(client: Client) -> None:
        while await client.request():
            await client.send(*parts)
            if then == "close":
                return

    return script


async def closing(client: Client) -> None:
    """Answers one request, then closes as soon as the next one has come."""
    await client.request()
    await client.send(whole(b"{}"))
    await client.request()
