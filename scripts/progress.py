"""Stages of a long command, shown alike on a terminal and in a log. Standard library only.

Every event is a line of its own with the seconds since the start. Silence is broken by a heartbeat:
on a terminal a status line that rewrites itself, else one more line every `beat` seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Self

CLEAR = "\r\033[K"


class Progress:
    """Prints lines to `out` and tells of the running stage while nobody else does.

    A context manager: leaving it ends the heartbeat and clears the status line.
    """

    def __init__(self, out: IO[str] | None = None, *, beat: float = 5.0) -> None:
        self._out = sys.stdout if out is None else out
        self._tty = self._out.isatty()
        self._beat = 1.0 if self._tty else beat
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._stage = ""
        self.detail: Callable[[], str] | None = None
        self._stage_began = self._began
        self._spoken = self._began
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        with self._lock:
            if self._tty:
                self._write(CLEAR)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def stage(self, name: str) -> None:
        """Begins a stage and says so."""
        with self._lock:
            self._stage, self._stage_began, self.detail = name, time.monotonic(), None
        self.say(name)

    def now(self, name: str) -> None:
        """Names what the heartbeat speaks of, without a line of its own."""
        with self._lock:
            self._stage, self._stage_began, self.detail = name, time.monotonic(), None

    def say(self, text: str) -> None:
        """Prints one line."""
        with self._lock:
            self._spoken = time.monotonic()
            self._write(f"{CLEAR if self._tty else ''}[{self.seconds:6.1f} s] {text}\n")

    def _run(self) -> None:
        while not self._over.wait(self._beat / 4):
            with self._lock:
                now = time.monotonic()
                if not self._stage or now - self._spoken < self._beat:
                    continue
                what = self._stage if self.detail is None else self.detail()
                text = f"… {what} ({now - self._stage_began:.0f} s)"
                if self._tty:
                    self._write(f"{CLEAR}           {text[:68]}")
                else:
                    self._spoken = now
                    self._write(f"[{self.seconds:6.1f} s] {text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
