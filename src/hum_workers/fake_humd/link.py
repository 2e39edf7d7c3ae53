"""One client's socket: what humd reads from it, and the bounded queue of what it hears.

Owns the socket and its callbacks in the event loop; `close` takes both away. Delivery copies
humd's: whatever a read brings is routed into the queues first, and only then is written; a queue
that is full drops what comes and says nothing. Beyond the queue stand the kernel's buffer and the
one tone in hand, nothing else, so tones are lost where humd would lose them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from hum_workers.fake_humd.router import Seat
from hum_workers.fake_humd.wire import MAX_LINE, Lines

READ_SIZE = 64 * 1024
READ_TURN = 1024 * 1024
"""Bytes taken from one client before anything is written: humd's reader gives way as rarely."""

WRITE_BATCH = 16
"""Tones in one send."""

KERNEL_BUFFER = 24 * 1024
"""SO_SNDBUF of a client. humd sends tone by tone, so the kernel's default holds 170 to 280 of them;
batches are packed tighter and would make room for a thousand."""


class Hub(Protocol):
    """What a link needs of the humd it belongs to."""

    def read(self, link: Link, lines: list[bytes]) -> None:
        """Lines have come in; may close the link."""

    def flush(self) -> None:
        """A read is over: write what it put into the queues."""

    def gone(self, link: Link) -> None:
        """The link has closed."""


class Link:
    """A connected client. It is the `Port` of its seat."""

    seat: Seat

    def __init__(
        self, sock: socket.socket, hub: Hub, *, queue: int, dirty: Callable[[Link], None]
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
        self._sock = sock
        self._fd = sock.fileno()
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._limit = queue
        self._dirty = dirty
        self._queue: deque[bytes] = deque()
        self._hand: bytes | memoryview = b""
        """What is left of a line; a view, as a large one leaves in many pieces."""
        self._lines = Lines()
        self._writing = False
        self._held: asyncio.TimerHandle | None = None
        self._cut: float | None = None
        self.stalled = True
        self.closed = False
        self.dropped = 0
        """Tones that did not fit into the queue."""

    def offer(self, line: bytes) -> None:
        """Queues a line, or drops it when the queue is full."""
        if len(self._queue) >= self._limit:
            self.dropped += 1
            return
        self._queue.append(line)
        if len(self._queue) == 1:
            self._dirty(self)

    def stall(self) -> None:
        """Neither reads nor writes until `resume`."""
        if not self.stalled:
            self.stalled = True
            self._loop.remove_reader(self._fd)
            self._stop_writing()

    def resume(self) -> None:
        """Reads and writes (again)."""
        if self.stalled and not self.closed:
            self.stalled = False
            self._loop.add_reader(self._fd, self._readable)
            self.write()

    def half_close(self) -> None:
        """Ends what the client hears; what it says is still read."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def cut(self, pause: float) -> None:
        """The next line goes out in two pieces, `pause` seconds apart."""
        self._cut = pause

    def inject(self, data: bytes) -> None:
        """Puts raw bytes behind what is queued, whatever the queue's limit."""
        self._queue.append(data)
        self.write()

    def close(self) -> None:
        """Closes the connection at once; what is queued is lost. Idempotent."""
        if self.closed:
            return
        self.stall()
        self.closed = True
        if self._held is not None:
            self._held.cancel()
        self._queue.clear()
        self._sock.close()
        self._hub.gone(self)

    def write(self) -> None:
        """Writes what is queued as far as the socket takes it."""
        if self.stalled or self._held is not None:
            return
        try:
            while self._hand or self._queue:
                if self._cut is not None and not self._hand:
                    self._write_cut(self._cut)
                    return
                self._write_batch()
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self.write)
            return
        except OSError:
            # The client is gone; the end of its stream tells the reader. Nothing waits for it.
            self._hand = b""
            self._queue.clear()
        self._stop_writing()

    def _write_batch(self) -> None:
        if self._hand:
            self._hand = self._hand[self._sock.send(self._hand) :]
            return
        queue = self._queue
        batch = list(islice(queue, WRITE_BATCH))
        sent = self._sock.send(b"".join(batch) if len(batch) > 1 else batch[0])
        for line in batch:
            if sent <= 0:
                return
            queue.popleft()
            if sent < len(line):
                self._hand = memoryview(line)[sent:]
            sent -= len(line)

    def _write_cut(self, pause: float) -> None:
        line = self._queue.popleft()
        self._hand = line
        # Inside a character if there is a long one: behind its first byte.
        middle = next((at + 1 for at, byte in enumerate(line) if byte >= 0xC0), len(line) // 2)
        self._hand = line[self._sock.send(line[:middle]) :]
        self._cut = None
        self._stop_writing()
        self._held = self._loop.call_later(pause, self._release)

    def _release(self) -> None:
        self._held = None
        self.write()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _readable(self) -> None:
        taken = 0
        while taken < READ_TURN and not self.stalled:
            try:
                data = self._sock.recv(READ_SIZE)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self._hub.read(self, list(self._lines.rest()))
                self._hub.flush()
                self.close()
                return
            taken += len(data)
            self._hub.read(self, self._lines.feed(data))
            if self._lines.waiting > MAX_LINE:
                self.close()
        self._hub.flush()
