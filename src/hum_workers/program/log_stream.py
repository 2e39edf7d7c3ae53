"""Where log lines go when their reader may be slow, gone, or never there: a pipe, a terminal.

Owns one descriptor and one thread that writes to it. Promises that `write` never waits for a
reader: at most `LIMIT` bytes wait, what is beyond them is dropped, counted, and told of as soon as
the lines flow again.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable

LIMIT = 1024 * 1024
"""Bytes that wait for a reader at most."""
LAST_WORDS = 0.5
"""Seconds at the end of the process in which a reader may take what waits."""


class PatientStream:
    """Lines for one descriptor, written by a thread: a flag like O_NONBLOCK would be shared with
    every other process that has the descriptor. `told` makes the line that names a loss."""

    def __init__(self, fd: int, told: Callable[[int], str], limit: int = LIMIT) -> None:
        self._fd = fd
        self._told = told
        self._limit = limit
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Takes a line, or drops it when too much waits."""
        line = text.encode("utf-8", "replace")
        with self._change:
            if self._size + len(line) > self._limit:
                self._dropped += 1
                return
            self._add(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
                atexit.register(self.finish)
            self._change.notify_all()

    def flush(self) -> None:
        """Waits for nobody."""

    def finish(self, patience: float = LAST_WORDS) -> None:
        """Gives a reader `patience` seconds to take what waits."""
        until = time.monotonic() + patience
        with self._change:
            while self._size and (left := until - time.monotonic()) > 0:
                self._change.wait(left)

    def _add(self, line: bytes) -> None:
        self._waiting.append(line)
        self._size += len(line)

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._waiting:
                    self._change.wait()
                line = self._waiting.popleft()
            self._put(line)
            with self._change:
                self._size -= len(line)
                if self._dropped and self._size <= self._limit // 2:
                    self._add(self._told(self._dropped).encode())
                    self._dropped = 0
                self._change.notify_all()

    def _put(self, line: bytes) -> None:
        while line:
            try:
                line = line[os.write(self._fd, line) :]
            except BlockingIOError:  # somebody else has set the flag on the shared descriptor
                time.sleep(0.05)
            except OSError:
                return  # the reader has left: a lost line must not end a bee
