"""Between a socket and its SSH connection: little before there is proof, and one read a round.

The library takes what comes. Before the other side is proven that must not be much, and in a bulk
transfer one round of the event loop must not become all that lies in the socket: libuv alone reads
up to 32 buffers at once, and to decrypt those takes 20 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, cast

MOST_EARLY = 64 * 1024
"""Bytes from a side that is not proven yet."""
BULK = 32 * 1024
"""Bytes in one read after which others have their turn."""

RETRY_MS = 1000
"""Milliseconds between two tries to get data through; the kernel takes no less."""
_TCP_RTO_MAX_MS = 44  # since Linux 6.15; the module `socket` does not know it yet


class Gate(asyncio.Protocol):
    """The protocol of one socket in place of `connection`, an asyncssh.SSHConnection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._early = 0
        self._proven = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hands the transport on."""
        self._transport = cast(asyncio.Transport, transport)
        _try_again_soon(transport.get_extra_info("socket"))
        self._connection.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Hands the data on, or ends the connection where a stranger sends too much."""
        if not self._proven and not self._may_be_early(data):
            self._connection.abort()
            return
        self._connection.data_received(data)
        if len(data) >= BULK and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def eof_received(self) -> bool | None:
        """Hands it on."""
        ended: bool | None = self._connection.eof_received()
        return ended

    def connection_lost(self, exc: Exception | None) -> None:
        """Hands it on."""
        self._transport = None
        self._connection.connection_lost(exc)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _may_be_early(self, data: bytes) -> bool:
        # The library knows whom it talks to from the moment of proof on.
        self._proven = self._connection.get_extra_info("username") is not None
        self._early += len(data)
        return self._proven or self._early <= MOST_EARLY


def _try_again_soon(sock: Any) -> None:
    """Bounds the pause between two tries to get data through, where the kernel can.

    It doubles with each try: a link that was away for 7 s would be tried next after 12.
    """
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, RETRY_MS)


class Gates:
    """Makes sockets with gates; the library calls what does so a tunnel."""

    async def create_connection(
        self, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, Any]:
        """Connects."""
        loop = asyncio.get_running_loop()
        connection = factory()
        transport, _ = await loop.create_connection(lambda: Gate(connection), host, port)
        return transport, connection

    async def create_server(
        self, factory: Callable[[str, int], Any], host: str, port: int
    ) -> asyncio.Server:
        """Listens."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Gate(factory("", 0)), host, port)
