"""The bee's connection to humd: connects for ever, reads always, writes what the pacer lets go.

`Thrum` owns the socket; when `run` has ended, the socket is closed. It is the only one that writes
to it: hello first, then whatever the pacer gives, in one write for one turn of the loop. A handler
that fails never ends the read loop. asyncio protocols and transports, not streams: a stream costs
three times the CPU and has a line limit of its own.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import random
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import structlog

from hum_workers.thrum.chi import REPLY_CHIS, Chi
from hum_workers.thrum.pacer import Pacer
from hum_workers.thrum.protocol import LineReader
from hum_workers.thrum.tones import encode

log = structlog.get_logger()

RETRY = 2.0
"""Seconds between two attempts; humd needs about that long to come back."""
RETRY_JITTER = 0.75
"""Seconds more, at random, so that the bees of a machine don't all come at once."""
QUIET_FAILURES = 7
"""A machine that boots starts bees before humd: the next failure is the first worth a warning."""
CONNECT_TIMEOUT = 10.0
"""Seconds; a full backlog makes a Unix connect hang."""


WORDS = {
    errno.ENOENT: "humd is not there yet: no such socket",
    errno.ECONNREFUSED: "humd is not there yet: nobody listens at the socket",
    errno.EACCES: "the socket may not be opened: permission denied",
    errno.ETIMEDOUT: f"humd did not accept within {CONNECT_TIMEOUT:g} s",
}
"""What an errno of a connect means here."""


def _words(error: Exception) -> str:
    number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else getattr(error, "errno", None)
    return WORDS.get(number or 0) or getattr(error, "strerror", None) or str(error)


def retries() -> Iterator[float]:
    """Yields the seconds between attempts, for ever."""
    while True:
        yield RETRY + random.uniform(0, RETRY_JITTER)


class Thrum:
    """A connection that comes back. One task runs `run`; all else may be called from its loop.

    `hello` gives the bee's manifest as of now. `on_tone` gets every tone but echoes and the bee's
    own replies, and must not block. `on_state` hears True after each hello and False after each
    loss.
    """

    def __init__(
        self,
        *,
        socket: Callable[[], Path],
        hello: Callable[[], Mapping[str, Any]],
        on_tone: Callable[[dict[str, Any]], None],
        pacer: Pacer,
        on_state: Callable[[bool], None] | None = None,
        backoff: Callable[[], Iterator[float]] = retries,
    ) -> None:
        self.pacer = pacer
        self.epoch = 0
        """Connections so far, this one included."""
        self._socket = socket
        self._hello = hello
        self._on_tone = on_tone
        self._on_state = on_state
        self._backoff = backoff
        self._link: _Link | None = None
        self._leaves = False
        """The connection ends because we end it."""
        self._hello_line = b""
        self._flushing: asyncio.Handle | None = None
        self._drains: set[asyncio.Future[None]] = set()
        pacer.notify = self.flush
        pacer.bucket.all_read = self._all_read

    @property
    def connected(self) -> bool:
        """A connection stands, and its first tone is the hello."""
        return self._link is not None

    async def run(self) -> None:
        """Keeps a connection until cancelled, then closes it and drops what humd has not taken.

        Raises only what `socket` and `hello` raise.
        """
        failures = 0
        delays = self._backoff()
        while True:
            link = await self._connect(failures + 1)
            if link is None:
                failures += 1
            else:
                failures, delays = 0, self._backoff()
                try:
                    self._up(link)
                    await link.closed.wait()
                finally:
                    self._leaves = not link.closed.is_set()
                    link.transport.abort()
                    await link.closed.wait()
            await asyncio.sleep(next(delays))

    def rehello(self) -> None:
        """Says hello again, since the manifest changed; without a connection the next one does."""
        if self._link is not None:
            self._hello_line = encode(self._hello())
            self.flush()

    def flush(self) -> None:
        """Writes what the pacer lets go, at the end of this turn of the loop."""
        link = self._link
        if link is not None and self._flushing is None and not link.paused:
            self._flushing = link.loop.call_soon(self._write)

    async def drained(self, timeout: float) -> bool:
        """Waits until nothing waits and humd has read every ending; True if so.

        Gives up after `timeout` seconds, and at once without a connection.
        """
        drain = asyncio.get_running_loop().create_future()
        self._drains.add(drain)
        self._settle()
        try:
            async with asyncio.timeout(timeout):
                await drain
        except TimeoutError:
            pass
        finally:
            self._drains.discard(drain)
        return self.pacer.idle

    async def _connect(self, attempt: int) -> _Link | None:
        path = str(self._socket())
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, link = await loop.create_unix_connection(lambda: _Link(self, loop), path)
        except OSError as error:
            self._say_away(path, attempt, _words(error))
            return None
        return link

    def _say_away(self, path: str, attempt: int, reason: str) -> None:
        if attempt == QUIET_FAILURES + 1:
            say = log.warning
        else:
            say = log.info if attempt == 1 and not self.epoch else log.debug
        say(
            "worker.connecting", socket=path, reason=f"{reason}; it is tried again", attempt=attempt
        )

    def _up(self, link: _Link) -> None:
        if link.closed.is_set():
            return
        self.epoch += 1
        self._hello_line = encode(self._hello())
        self._link = link
        self._write()
        self._tell(True)

    def down(self, link: _Link, error: Exception | None) -> None:
        """The link is gone. Called by it at once, so that nothing more is taken for it."""
        if self._link is not link:
            return
        self._link = None
        self._hello_line = b""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        self.pacer.lost()
        told = f"the connection broke: {_words(error)}" if error else "humd closed the connection"
        reason = "the bee leaves" if self._leaves else f"{told}; it is tried again"
        log.info("worker.disconnected", epoch=self.epoch, reason=reason)
        self._settle()
        self._tell(False)

    def receive(self, tone: dict[str, Any]) -> None:
        """Takes a tone that humd sent."""
        chi = tone["chi"]
        if chi == Chi.ECHO:
            self.pacer.echoed(str(tone.get("rid")))
            self._settle()
        # humd sends a worker its own replies for a sid that nobody claimed (section 6); an error
        # with a callId is a forager's answer to a tool call (section 7).
        elif chi not in REPLY_CHIS or (chi == Chi.ERROR and "callId" in tone):
            try:
                self._on_tone(tone)
            except Exception:
                log.exception("worker.tone.failed", chi=chi, sid=tone.get("sid"))

    def _write(self) -> None:
        if self._hello_line:
            self.pacer.urgent(self._hello_line)
            self._hello_line = b""
        self._flushing = None
        link = self._link
        if link is None or link.paused or link.transport.is_closing():
            return
        if lines := self.pacer.take():
            link.transport.write(lines)
        delay = self.pacer.wait()
        if delay is not None:
            self._flushing = link.loop.call_later(delay, self._write)
        elif self._drains:
            self._settle()

    def _all_read(self) -> bool:
        return self._link is None or self._link.all_read()

    def _settle(self) -> None:
        if self._drains and (self._link is None or self.pacer.idle):
            for drain in self._drains:
                if not drain.done():
                    drain.set_result(None)

    def _tell(self, connected: bool) -> None:
        if self._on_state is not None:
            try:
                self._on_state(connected)
            except Exception:
                log.exception("worker.state.failed", connected=connected)


class _Link(asyncio.Protocol):
    """One connection, from its first byte to its last."""

    def __init__(self, thrum: Thrum, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.closed = asyncio.Event()
        self.paused = False
        self.transport: asyncio.Transport
        self._thrum = thrum
        self._reader = LineReader()
        self._warned: set[str] = set()
        self._fd = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._fd = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        for tone in self._reader.feed(data):
            self._thrum.receive(tone)
        for reason, count in self._reader.dropped.items():
            if count and reason not in self._warned:
                self._warned.add(reason)
                log.warning("worker.line.dropped", reason=reason, limit=self._reader.limit)

    def eof_received(self) -> None:
        # An orderly close would wait for humd to take what is buffered, and it may never.
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._thrum.down(self, exc)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._thrum.flush()

    def all_read(self) -> bool:
        """Whether humd has taken every byte: none buffered here, none in the socket."""
        if self.transport.get_write_buffer_size():
            return False
        try:
            unread = fcntl.ioctl(self._fd, termios.TIOCOUTQ, b"\0\0\0\0")
        except OSError:
            return True
        return not int.from_bytes(unread, sys.byteorder)
