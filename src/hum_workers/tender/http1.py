"""One HTTP/1.1 client connection: requests one after another, an answer in pieces.

Owns its transport and parser. Promises an exchange either `complete` or `failed`, once, last,
unless the owner aborted the connection; `body` comes at most once a read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import httptools

MAX_HEAD = 64 * 1024
"""Bytes of status line and headers at most (checked a read at a time)."""


class BadAnswer(ConnectionError):
    """The bytes that came are no HTTP/1.1 answer, or one over a limit."""


class Exchange(Protocol):
    """What one request's answer is delivered to."""

    def head(self, status: int, content_type: bytes) -> None:
        """Status and headers arrived."""

    def body(self, data: bytes) -> None:
        """The next bytes of the body, not empty."""

    def complete(self) -> None:
        """The answer is whole; the connection serves the next exchange or is gone."""

    def failed(self, error: OSError, answered: bool) -> None:
        """The connection broke first; `answered`: at least one byte had come."""


class Connection(asyncio.Protocol):
    """Serves one exchange at a time. `on_free` is called when it can serve the next one."""

    def __init__(
        self, on_free: Callable[[Connection], None], on_lost: Callable[[Connection], None]
    ) -> None:
        self.reused = False
        """Whether an exchange ended here before."""
        self.free_since = 0.0
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._pieces: list[bytes] = []
        self._paused = False
        self._reset()

    def _reset(self) -> None:
        self._answered = False
        self._head_bytes = 0
        self._in_head = True
        self._whole = False
        self._surplus = False
        self._keep = False
        self._sized = False
        self._content_type = b""

    def begin(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Sends one request. The connection must be free."""
        assert self._transport is not None
        self._reset()
        self._exchange = exchange
        # Not joined: a body may be 64 MiB.
        self._transport.writelines([head, body] if body else [head])

    @property
    def alive(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def pause(self) -> None:
        """Stops reading; the engine's socket fills up."""
        if self._transport is not None and self.alive and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads again."""
        if self._paused:
            self._paused = False
            if self._transport is not None and self.alive:
                self._transport.resume_reading()

    def abort(self) -> None:
        """Closes at once and drops what is unsent; the exchange hears nothing more."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def end(self, error: OSError) -> None:
        """Closes at once; an open exchange fails with `error`."""
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.failed(error, self._answered)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        parser = self._parser
        if exchange is None or parser is None:
            # Bytes that nobody asked for: the two sides do not agree where an answer ends.
            self.abort()
            return
        self._answered = True
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._whole:
                self._hand_over(exchange)
                self.end(BadAnswer(f"the engine's answer is no HTTP/1.1: {error}"))
                return
            self._surplus = True
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self.end(BadAnswer(f"the engine's answer has over {MAX_HEAD} bytes of headers"))
            return
        self._hand_over(exchange)
        if self._whole and self._exchange is exchange:
            self._finish(exchange)

    def _hand_over(self, exchange: Exchange) -> None:
        """Gives the chunks of one read to the exchange, as one piece."""
        pieces = self._pieces
        if pieces:
            whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            exchange.body(whole)

    def on_message_begin(self) -> None:
        # A second answer in the read that ends the first: nobody asked for it.
        self._surplus = self._whole

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._content_type = value
        elif name in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status >= 200 and self._exchange is not None and not self._whole:
            self._in_head = False
            self._exchange.head(status, self._content_type)

    def on_body(self, body: bytes) -> None:
        if not self._whole:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        # An interim answer (1xx) ends here too, still in its head.
        if not self._in_head and not self._whole and self._parser is not None:
            self._whole = True
            self._keep = self._parser.should_keep_alive()

    def connection_lost(self, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        self._transport = None
        self._parser = None  # it refers back to this object
        self._on_lost(self)
        if exchange is None:
            return
        if error is None and not self._in_head and not self._sized:
            exchange.complete()
            return
        if not isinstance(error, OSError):
            error = ConnectionResetError("the engine closed the connection before its answer ended")
        exchange.failed(error, self._answered)

    def _finish(self, exchange: Exchange) -> None:
        self._exchange = None
        self.resume()
        assert self._transport is not None
        if self._keep and not self._surplus and self.alive:
            self.reused = True
            self._on_free(self)
        else:
            self._transport.close()
        exchange.complete()


def request_head(method: str, path: str, headers: Mapping[str, str], length: int) -> bytes:
    """Returns the bytes of a request's head.

    Raises:
        ValueError: a header or the path would break out of its line.
    """
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if length:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    elif method != "GET":
        lines.append("Content-Length: 0")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header or path of a request holds a line break")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
