"""The page of figures over HTTP: GET and HEAD of /metrics on one address, and nothing else.

Owns a listening socket and its connections: at most `MOST` at once, each for one request and no
longer than `DEADLINE` seconds, whatever the client does. Runs on the bee's loop, without a thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Self, cast

import httptools
import structlog

from hum_workers.errors import UsageError

log = structlog.get_logger()

MOST = 16
"""Connections at once; one more is closed unheard."""
MOST_HEAD = 8192
"""Bytes of a request's head, and of whatever else a client sends."""
DEADLINE = 10.0
"""Seconds of a connection, from its first byte to the last of the answer."""
PATH = b"/metrics"
TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_WORDS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
}


class MetricsServer:
    """Serves `page` on one address until it is closed."""

    def __init__(self, page: Callable[[], bytes], *, deadline: float = DEADLINE) -> None:
        self.page = page
        self.deadline = deadline
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(
        cls, host: str, port: int, page: Callable[[], bytes], *, deadline: float = DEADLINE
    ) -> Self:
        """Listens; port 0 takes a free one, which `port` and the log name.

        Raises:
            UsageError: the address can't be used.
        """
        self = cls(page, deadline=deadline)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Connection(self), host, port)
        except OSError as error:
            # The text of a failed bind repeats the address; an error of a name has no errno.
            number = error.errno or 0
            why = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise UsageError(
                f"[metrics] listen: can't listen on {host}:{port}: {why}; name another port"
            ) from error
        log.info("worker.metrics.listening", host=host, port=self.port)
        return self

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Closes the socket and every connection."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Connection(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._target = b""
        self._read = 0
        self._answered = False

    def abort(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._server.connections) >= MOST:
            self._answered = True
            self._transport.abort()
            log.warning("worker.metrics.turned_away", most=MOST, reason="too many connections")
            return
        self._server.connections.add(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._server.deadline, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._read += len(data)
        if self._read > MOST_HEAD:
            self._answer(431)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Told after the head, which is answered: nothing is upgraded here.
            return
        except httptools.HttpParserError:
            self._answer(400)

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._target += url

    def on_message_complete(self) -> None:
        """The request is whole and was answered at its head: nothing unread is left."""
        if self._transport is not None:
            self._transport.close()

    def on_headers_complete(self) -> None:
        """The head is there; a body, if one follows, is nobody's concern."""
        method: bytes = self._parser.get_method()
        if self._target.partition(b"?")[0] != PATH:
            self._answer(404, head=method == b"HEAD")
        elif method not in (b"GET", b"HEAD"):
            self._answer(405)
        else:
            self._serve(head=method == b"HEAD")

    def _serve(self, *, head: bool) -> None:
        try:
            body = self._server.page()
        except Exception:
            log.exception("worker.metrics.failed")
            self._answer(500, head=head)
        else:
            self._answer(200, body, TEXT, head=head)

    def _answer(
        self,
        status: int,
        body: bytes | None = None,
        kind: bytes = b"text/plain; charset=utf-8",
        *,
        head: bool = False,
    ) -> None:
        if self._answered or self._transport is None:
            return
        self._answered = True
        body = _WORDS[status] + b"\n" if body is None else body
        fields = [
            b"HTTP/1.1 %d %b" % (status, _WORDS[status]),
            b"Content-Type: " + kind,
            b"Content-Length: %d" % len(body),
            b"Connection: close",
        ]
        if status == 405:
            fields.append(b"Allow: GET, HEAD")
        self._transport.write(b"\r\n".join([*fields, b"", b"" if head else body]))
        # Not closed yet: bytes of the client still unread would turn that into a reset, which takes
        # the answer with it. The deadline ends a client that goes on and on.
        self._transport.write_eof()
