"""What an engine prints: read for ever, cut into lines, the last ones kept.

Owns the read end of the engine's pipe. Promises that the engine never waits for us and that no
amount, length or kind of output costs more than a fixed amount of memory.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable

from hum_workers.process.logfile import LogFile

LINE_LIMIT = 8 * 1024
RING_LINES = 1000
RING_BYTES = 256 * 1024
CHUNK = 64 * 1024
CHUNKS_PER_TURN = 4  # a flood must not keep the loop from the turns

_BREAK = re.compile(rb"(\r?\n|\r)")  # `\r*\n` takes quadratic time on a run of CRs
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    rb"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC and other strings
    rb"|[ -/]*[0-~])"
)
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")


def clean(line: bytes) -> bytes:
    """Returns the line without ANSI sequences and control characters (tabs stay)."""
    return _CONTROL.sub(b"", _ESCAPE.sub(b"", line))


class LineSplitter:
    """Bytes in, lines out (pure). A line ended by a bare CR is passing: a progress bar's."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._cut = 0
        self._held_cr = False
        self.cut_bytes = 0

    def feed(self, data: bytes) -> list[tuple[bytes, bool]]:
        """Returns the lines that `data` completes, each with True when it is passing."""
        if self._held_cr:
            data = b"\r" + data
        # A CR at the end may be the first half of CR LF.
        self._held_cr = data.endswith(b"\r")
        if self._held_cr:
            data = data.rstrip(b"\r")
        lines = []
        *ended, rest = _BREAK.split(data)
        for text, mark in zip(ended[::2], ended[1::2], strict=True):
            self._add(text)
            passing = mark == b"\r"
            line = self._take()
            if line or not passing:
                lines.append((line, passing))
        self._add(rest)
        return lines

    def partial(self) -> bytes:
        """Returns the line that has not ended yet."""
        return clean(bytes(self._partial))

    def flush(self) -> list[tuple[bytes, bool]]:
        """Ends the line that has not ended yet, if there is one."""
        self._held_cr = False
        line = self._take()
        return [(line, False)] if line else []

    def _add(self, text: bytes) -> None:
        room = self._limit - len(self._partial)
        self._partial += text[:room]
        self._cut += max(0, len(text) - room)

    def _take(self) -> bytes:
        line = self.partial()
        if self._cut:
            line += b" [%d bytes more]" % self._cut
        self.cut_bytes += self._cut
        self._partial.clear()
        self._cut = 0
        return line


class Ring:
    """The last lines, bounded in number and bytes; a passing line gives way to the next one."""

    def __init__(self, lines: int = RING_LINES, size: int = RING_BYTES) -> None:
        self._kept: deque[bytes] = deque()
        self._max_lines = lines
        self._max_bytes = size
        self._bytes = 0
        self._last_passes = False

    def add(self, line: bytes, passing: bool = False) -> None:
        """Keeps a line and drops what no longer fits."""
        if self._last_passes:
            if not line and not passing:
                self._last_passes = False  # a newline after a progress bar leaves the bar standing
                return
            self._bytes -= len(self._kept.pop())
        self._kept.append(line)
        self._bytes += len(line)
        self._last_passes = passing
        while len(self._kept) > self._max_lines or self._bytes > self._max_bytes:
            self._bytes -= len(self._kept.popleft())
            self._last_passes = self._last_passes and bool(self._kept)

    def lines(self) -> list[bytes]:
        """Returns what is kept, the oldest first."""
        return list(self._kept)


class Output:
    """Reads a pipe until its end and hands each line to `on_line`, the ring and the log file.

    The pipe ends when the last process that holds it does, so the end of the engine's main process
    is not the end of the output: `pump` reads what is there at that moment.
    """

    def __init__(
        self,
        fd: int,
        on_line: Callable[[str], None] | None = None,
        log: LogFile | None = None,
    ) -> None:
        """Takes over `fd`. Must be called inside a running loop."""
        self._fd = fd
        self._on_line = on_line
        self._log = log
        self._splitter = LineSplitter()
        self._ring = Ring()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.bytes_read = 0
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)

    def lines(self) -> list[str]:
        """Returns the last lines, the unfinished one included, the oldest first."""
        kept = self._ring.lines()
        if partial := self._splitter.partial():
            kept.append(partial)
        return [line.decode("utf-8", "replace") for line in kept]

    def log(self, text: bytes) -> None:
        """Writes something of ours into the log file, if there is one."""
        if self._log is not None:
            self._log.write(text)

    def pump(self, limit: int = 4 * 1024 * 1024) -> None:
        """Reads what waits in the pipe now, up to `limit` bytes."""
        self._read(limit // CHUNK)

    def close(self) -> None:
        """Stops reading, whoever still holds the other end."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._take(self._splitter.flush())
        if self._log is not None:
            self._log.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def _readable(self) -> None:
        self._read(CHUNKS_PER_TURN)

    def _read(self, chunks: int) -> None:
        for _ in range(chunks):
            if self._fd < 0:
                return
            try:
                data = os.read(self._fd, CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self.bytes_read += len(data)
            self._take(self._splitter.feed(data))

    def _take(self, lines: list[tuple[bytes, bool]]) -> None:
        if self._log is not None and lines:
            # Every step of a progress bar would fill the file with nothing.
            self._log.write(b"".join(line + b"\n" for line, passing in lines if not passing))
        for line, passing in lines:
            self._ring.add(line, passing)
            if self._on_line is not None:
                self._on_line(line.decode("utf-8", "replace"))
