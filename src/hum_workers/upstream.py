"""The engine's HTTP side, over its Unix socket: answers whole, or as events of a turn.

Owns a small pool of kept-alive connections. Promises that a stream's sink gets exactly one FINISH
or ERROR, last, never from within `stream` itself, and nothing after `Stream.close`. A request is
sent a second time only when a kept connection had closed before one byte of answer came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hum_workers.engine_events import ChatStream, Event, one_line, refusal
from hum_workers.errors import ErrorCode
from hum_workers.frames import Mmm
from hum_workers.http1 import BadAnswer, Connection, request_head

Sink = Callable[[Mmm, Any], None]

MAX_BODY = 16 * 1024 * 1024
"""Bytes of an answer that is no stream at most."""

IDLE_KEPT = 4.0
"""Seconds a free connection is used again; uvicorn closes it after 5 by default."""

RACE = 1.0
"""Seconds within which a kept connection's end means it was closed before our request."""

_MAX_FREE = 64
_MAX_SURPLUS = 1024 * 1024
_CONNECT_PAUSE = 0.01


@dataclass(frozen=True)
class Response:
    """A whole answer."""

    status: int
    body: bytes


class Upstream:
    """One engine behind a Unix socket."""

    def __init__(
        self, uds: Path, headers: Mapping[str, str] | None = None, *, connect_timeout: float = 10.0
    ) -> None:
        self.uds = str(uds)
        self._headers = dict(headers or {})
        self._connect_timeout = connect_timeout
        self._free: list[Connection] = []
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def request(
        self, method: str, path: str, body: bytes = b"", timeout: float = 10.0
    ) -> Response:
        """Returns the whole answer.

        Raises:
            OSError: no socket, refused, broken, over MAX_BODY, or (TimeoutError) too slow.
        """
        head = request_head(method, path, self._headers, len(body))
        answer = _Whole(self, head, body)
        try:
            async with asyncio.timeout(timeout):
                return await answer.future
        finally:
            answer.close()

    def stream(self, path: str, body: bytes, sink: Sink) -> Stream:
        """Posts a chat request; its events go to `sink`, which must not raise."""
        head = request_head("POST", path, self._headers, len(body))
        return Stream(self, head, body, sink)

    async def close(self) -> None:
        """Closes every connection. Streams that are open end with an ERROR."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in tuple(self._connections):
            connection.end(ConnectionAbortedError("the connection to the engine was closed"))
        for _ in range(8):  # a transport reports its end a turn of the loop later
            await asyncio.sleep(0)

    def take_free(self) -> Connection | None:
        """Returns a kept connection, if one is young enough."""
        oldest = asyncio.get_running_loop().time() - IDLE_KEPT
        while self._free:
            connection = self._free.pop()
            if connection.alive and connection.free_since > oldest:
                return connection
            connection.abort()
        return None

    def open_for(self, call: _Call) -> asyncio.Task[None]:
        """Opens a new connection for `call` in a task that this object owns."""
        task = asyncio.get_running_loop().create_task(self._open(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def free(self, connection: Connection) -> None:
        """Keeps `connection` for the next call."""
        connection.free_since = asyncio.get_running_loop().time()
        self._free.append(connection)
        if len(self._free) > _MAX_FREE:
            self._free.pop(0).abort()

    async def _open(self, call: _Call) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._connect()
        except OSError as error:
            call.failed(error, answered=False)
        except asyncio.CancelledError:
            call.failed(ConnectionAbortedError("the connection to the engine was closed"), False)
            raise
        else:
            call.begin(connection)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, connection = await loop.create_unix_connection(
                    lambda: Connection(self.free, self._lost), self.uds
                )
            except BlockingIOError:
                # The engine's accept queue is full: a Unix socket says EAGAIN instead of waiting.
                await asyncio.sleep(_CONNECT_PAUSE)
                continue
            if not connection.alive:
                raise ConnectionResetError("the engine closed the new connection")
            self._connections.add(connection)
            return connection

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._free:
            self._free.remove(connection)


class _Call:
    """One request on its way: finds a connection, and a second one if the first had just closed."""

    def __init__(self, upstream: Upstream, head: bytes, body: bytes) -> None:
        self._upstream = upstream
        self._request: tuple[bytes, bytes] | None = (head, body)
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._sent_at = 0.0
        self._paused = False
        self._over = False
        kept = upstream.take_free()
        if kept is not None:
            self.begin(kept)
        else:
            self._opening = upstream.open_for(self)

    def begin(self, connection: Connection) -> None:
        """Sends the request on `connection`."""
        self._opening = None
        if self._over or self._request is None:
            self._upstream.free(connection)
            return
        self._connection = connection
        self._sent_at = asyncio.get_running_loop().time()
        connection.begin(self, *self._request)
        if self._paused:
            connection.pause()

    def close(self) -> None:
        """Ends the call now; an answer that is not whole costs its connection."""
        self._over = True
        if self._opening is not None:
            self._opening.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def head(self, status: int, content_type: bytes) -> None:
        self._request = None

    def body(self, data: bytes) -> None:
        raise NotImplementedError

    def complete(self) -> None:
        self._connection = None
        self._over = True

    def failed(self, error: OSError, answered: bool) -> None:
        connection, self._connection, self._opening = self._connection, None, None
        if self._over:
            return
        raced = (
            connection is not None
            and connection.reused
            and not answered
            and not isinstance(error, ConnectionAbortedError)
            and asyncio.get_running_loop().time() - self._sent_at < RACE
        )
        if raced:
            self._opening = self._upstream.open_for(self)
            return
        self._over = True
        self.broke(error, answered)

    def broke(self, error: OSError, answered: bool) -> None:
        raise NotImplementedError


class _Whole(_Call):
    """Collects one answer into `future`."""

    def __init__(self, upstream: Upstream, head: bytes, body: bytes) -> None:
        self.future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._collected = bytearray()
        super().__init__(upstream, head, body)

    def head(self, status: int, content_type: bytes) -> None:
        super().head(status, content_type)
        self._status = status

    def body(self, data: bytes) -> None:
        self._collected += data
        if len(self._collected) > MAX_BODY:
            self.close()
            self.broke(BadAnswer(f"the engine's answer has over {MAX_BODY} bytes"), True)

    def complete(self) -> None:
        super().complete()
        if not self.future.done():
            self.future.set_result(Response(self._status, bytes(self._collected)))

    def broke(self, error: OSError, answered: bool) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Stream(_Call):
    """One turn's open request. Closing it is how a turn is cancelled."""

    def __init__(self, upstream: Upstream, head: bytes, body: bytes, sink: Sink) -> None:
        self._sink = sink
        self._chat = ChatStream()
        self._status = 0
        self._refused: bytearray | None = None
        self._surplus = 0
        self._closed = False
        super().__init__(upstream, head, body)

    @property
    def done(self) -> bool:
        """Whether the sink got FINISH or ERROR, or the stream was closed."""
        return self._closed or self._chat.done

    @property
    def usage(self) -> dict[str, int] | None:
        """What the engine has counted so far: input, output, cached; None before its first word."""
        return self._chat.usage

    def pause(self) -> None:
        """Stops reading from the engine; at most one read's events still come."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Reads on."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def close(self) -> None:
        """Closes the connection, so that the engine stops; the sink gets nothing more."""
        self._closed = True
        if self._chat.done:
            # Only the end of the answer is missing: the connection is worth keeping.
            self.resume()
        else:
            super().close()

    def head(self, status: int, content_type: bytes) -> None:
        super().head(status, content_type)
        self._status = status
        streams = content_type.startswith(b"text/event-stream") or not content_type
        if status != 200 or not streams:
            self._refused = bytearray()

    def body(self, data: bytes) -> None:
        if self._refused is not None:
            self._refused += data
            if len(self._refused) > MAX_BODY:
                self._deliver(self._refusal())
        elif not self._chat.done:
            self._deliver(self._chat.feed(data))
        else:
            self._surplus += len(data)
            if self._surplus > _MAX_SURPLUS:
                super().close()

    def complete(self) -> None:
        super().complete()
        if self._refused is None:
            self._deliver(self._chat.eof())
        else:
            self._deliver(self._refusal())

    def broke(self, error: OSError, answered: bool) -> None:
        if answered and not isinstance(error, BadAnswer):
            self._deliver(self._chat.eof(f"the engine's stream broke: {_words(error)}"))
            return
        message = f"can't reach the engine at {self._upstream.uds}: {_words(error)}"
        if answered:
            message = str(error)
        self._deliver(self._chat.fail(ErrorCode.ENGINE_ERROR, message))

    def _refusal(self) -> list[Event]:
        if self._status == 200:
            message = "the engine answered with something other than an event stream"
            return self._chat.fail(ErrorCode.ENGINE_ERROR, message)
        code, message = refusal(self._status, bytes(self._refused or b""))
        return self._chat.fail(code, message)

    def _deliver(self, events: list[Event]) -> None:
        for kind, data in events:
            if self._closed:
                return
            self._sink(kind, data)
        if events and events[-1][0] is Mmm.ERROR:
            super().close()


def _words(error: OSError) -> str:
    return one_line(error.strerror or str(error) or type(error).__name__)
