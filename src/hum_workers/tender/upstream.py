"""The engine's HTTP side, over its Unix socket: answers whole, or as events of a turn.

Owns its connections. Promises that a stream's sink gets exactly one FINISH or ERROR, last, never
from within `stream` itself, and nothing after `Stream.close`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hum_workers.errors import ErrorCode, one_line
from hum_workers.frames import Mmm
from hum_workers.tender.engine_events import ChatStream, Event, refusal
from hum_workers.tender.http1 import BadAnswer, request_head
from hum_workers.tender.http_pool import Call, Pool

Sink = Callable[[Mmm, Any], None]

MAX_BODY = 16 * 1024 * 1024
"""Bytes of an answer that is no stream at most."""

_MAX_SURPLUS = 1024 * 1024


@dataclass(frozen=True)
class Response:
    """A whole answer."""

    status: int
    body: bytes


class Upstream:
    """One engine behind a Unix socket."""

    def __init__(
        self,
        uds: Path,
        headers: Mapping[str, str] | None = None,
        *,
        connect_timeout: float = 10.0,
        reworded: Sequence[Sequence[str]] = (),
    ) -> None:
        """`reworded` is that of a `CellSpec`."""
        self._reworded = reworded
        self._pool = Pool(str(uds), connect_timeout)
        self._headers = dict(headers or {})

    async def request(
        self, method: str, path: str, body: bytes = b"", timeout: float = 10.0
    ) -> Response:
        """Returns the whole answer.

        Raises:
            OSError: no socket, refused, broken, over MAX_BODY, or (TimeoutError) too slow.
        """
        head = request_head(method, path, self._headers, len(body))
        answer = _Whole(self._pool, head, body)
        try:
            async with asyncio.timeout(timeout):
                return await answer.future
        finally:
            answer.close()

    def stream(self, path: str, body: bytes, sink: Sink) -> Stream:
        """Posts a chat request; its events go to `sink`, which must not raise."""
        head = request_head("POST", path, self._headers, len(body))
        return Stream(self._pool, head, body, sink, self._reworded)

    async def close(self) -> None:
        """Closes every connection. Streams that are open end with an ERROR."""
        await self._pool.close()


class _Whole(Call):
    """Collects one answer into `future`."""

    def __init__(self, pool: Pool, head: bytes, body: bytes) -> None:
        self.future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._collected = bytearray()
        super().__init__(pool, head, body)

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


class Stream(Call):
    """One turn's open request. Closing it is how a turn is cancelled."""

    def __init__(
        self,
        pool: Pool,
        head: bytes,
        body: bytes,
        sink: Sink,
        reworded: Sequence[Sequence[str]] = (),
    ) -> None:
        self._sink = sink
        self._reworded = reworded
        self._chat = ChatStream()
        self._status = 0
        self._refused: bytearray | None = None
        self._surplus = 0
        self._closed = False
        self.unreachable = False
        """Whether nobody listens at the engine's socket, or there is none."""
        super().__init__(pool, head, body)

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
        self.unreachable = not answered and error.errno in (errno.ENOENT, errno.ECONNREFUSED)
        message = f"can't reach the engine at {self.pool.uds}: {_words(error)}"
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
            if kind is Mmm.ERROR:
                for theirs, ours in self._reworded:
                    data["message"] = data["message"].replace(theirs, ours)
            self._sink(kind, data)
        if events and events[-1][0] is Mmm.ERROR:
            super().close()


def _words(error: OSError) -> str:
    return one_line(error.strerror or str(error) or type(error).__name__)
