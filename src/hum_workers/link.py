"""FrameLink: a pair of pipes that carries frames both ways without ever blocking.

Owns two file descriptors. Frames that are sent within one turn of the loop leave in one write, and
the engine's events among them in one `mmm` frame: that halves the cost of a token on both sides.
Both ends write without blocking, since blocking pipes both ways stall for ever once 64 KiB are
full in each direction.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from hum_workers.errors import FrameError
from hum_workers.frames import Frame, FrameReader, pack

HIGH_WATER = 8 * 1024 * 1024
"""Unsent bytes from which `on_pressure(True)` asks the sender to slow down."""
LAST_FRAMES = 1.0
"""Seconds to read on when the other side reads no more: its last frames may be on their way."""


class FrameLink:
    """Frames over a read and a write descriptor; both are closed with it.

    `on_frame` gets each frame in order and must not block. `on_end` is called once, when the other
    side is gone or speaks rubbish; its argument says which in a few words.
    """

    def __init__(
        self,
        *,
        on_frame: Callable[[list[Any]], None],
        on_end: Callable[[str], None],
        on_pressure: Callable[[bool], None] | None = None,
    ) -> None:
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_pressure = on_pressure
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._events: list[list[Any]] = []
        self._scheduled = False
        self._ended = False
        self._unread = False
        """The other side takes nothing any more; what it said may still be on its way."""
        self._read: asyncio.ReadTransport | None = None
        self._write: asyncio.WriteTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._open_ends = 0
        self._finished: asyncio.Future[None] = self._loop.create_future()

    async def open(self, read_fd: int, write_fd: int) -> None:
        """Takes over both descriptors and begins to read; what was sent before goes now."""
        # A cancel in the middle of it would leave descriptors behind: it takes effect afterwards.
        opening = asyncio.ensure_future(self._connect(read_fd, write_fd))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda _: self.abort())
            raise
        self.flush()

    async def _connect(self, read_fd: int, write_fd: int) -> None:
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        self._write, _ = await self._loop.connect_write_pipe(
            lambda: _WriteEnd(self), os.fdopen(write_fd, "wb", 0)
        )
        self._write.set_write_buffer_limits(high=HIGH_WATER)
        self._read, _ = await self._loop.connect_read_pipe(
            lambda: _ReadEnd(self), os.fdopen(read_fd, "rb", 0)
        )

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._ended

    def send(self, *frame: Any) -> None:
        """Queues one frame for the end of this turn of the loop; after the end it is dropped."""
        if self._ended or self._unread:
            return
        if self._events:
            self._pack_events()
        self._out.append(pack(*frame))
        self._schedule()

    def event(self, turn: int, kind: int, data: Any) -> None:
        """Queues one engine event for the `mmm` frame of this turn of the loop."""
        if self._ended or self._unread:
            return
        self._events.append([turn, kind, data])
        if not self._scheduled:
            self._schedule()

    def flush(self) -> None:
        """Hands what is queued to the kernel, or to the transport's buffer."""
        self._scheduled = False
        if self._write is None or self._ended:
            return
        if self._events:
            self._pack_events()
        if self._out:
            self._write.write(b"".join(self._out))
            self._out.clear()

    def close(self) -> None:
        """Closes both pipes after what is queued; idempotent, calls nobody back."""
        self._ended = True
        if self._write is not None:
            if self._events:
                self._pack_events()
            if self._out:
                self._write.write(b"".join(self._out))
                self._out.clear()
            self._write.close()
        if self._read is not None:
            self._read.close()

    def abort(self) -> None:
        """Closes both pipes at once; what is queued is lost."""
        self._ended = True
        self._out.clear()
        self._events.clear()
        write, self._write = self._write, None
        # Asyncio's transport reports its end twice when it is aborted on its way out.
        if write is not None and not (write.is_closing() and not write.get_write_buffer_size()):
            write.abort()
        if self._read is not None:
            self._read.close()

    async def finished(self, timeout: float) -> bool:
        """Returns whether, after a `close`, all was taken and both pipes are closed by then."""
        await asyncio.wait({self._finished}, timeout=timeout)
        return self._finished.done()

    def unsent(self) -> int:
        """Returns the bytes that the kernel has not yet taken."""
        waiting = self._write.get_write_buffer_size() if self._write is not None else 0
        return waiting + sum(map(len, self._out))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def _pack_events(self) -> None:
        self._out.append(pack(Frame.MMM, self._events))
        self._events = []

    def _data(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if self._ended:
                    return
                self._on_frame(frame)
        except FrameError as error:
            self._end(str(error))

    def _opened(self) -> None:
        self._open_ends += 1

    def _lost(self) -> None:
        self._open_ends -= 1
        if self._open_ends == 0 and not self._finished.done():
            self._finished.set_result(None)

    def _unheard(self, why: str) -> None:
        self._write, self._unread = None, True
        self._out.clear()
        self._events.clear()
        self._lost()
        if not self._ended:
            # A side that leaves closes both pipes, and what it said before is still to be read.
            self._loop.call_later(LAST_FRAMES, self._end, why)

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self.abort()
        self._on_end(why)

    def _pressure(self, high: bool) -> None:
        if self._on_pressure is not None:
            self._on_pressure(high)


class _ReadEnd(asyncio.Protocol):
    def __init__(self, link: FrameLink) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link._opened()

    def data_received(self, data: bytes) -> None:
        self._link._data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link._lost()
        self._link._end(_words(exc))


class _WriteEnd(asyncio.BaseProtocol):
    def __init__(self, link: FrameLink) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link._opened()

    def pause_writing(self) -> None:
        self._link._pressure(True)

    def resume_writing(self) -> None:
        self._link._pressure(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link._unheard(_words(exc))


def _words(exc: Exception | None) -> str:
    return "the pipe was closed" if exc is None else str(exc)
