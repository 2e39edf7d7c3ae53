"""The tender's end of the control socket to a guard (`guard.py` holds the other)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Sequence

from hum_workers.process import guard


def command(
    control: int,
    argv: Sequence[str],
    *,
    open_files: int | None = None,
    cpus: str | None = None,
    cgroups: Sequence[str] = (),
) -> list[str]:
    """Returns the command line of a guard that runs `argv`; `control` is its end of the socket."""
    options = ["--control", str(control)]
    options += ["--nofile", str(open_files)] if open_files else []
    options += ["--cpus", cpus] if cpus else []
    for folder in cgroups:
        options += ["--cgroup", folder]
    return [sys.executable, "-I", "-S", guard.__file__, *options, "--", *argv]


class GuardLink:
    """Sends orders and hands each line of the guard to `on_word` as kind and value.

    Closing it, or dying with it open, makes the guard kill everything below it.
    """

    def __init__(self, control: socket.socket, on_word: Callable[[str, str], None]) -> None:
        self._control = control
        self._on_word = on_word
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        control.setblocking(False)
        self._loop.add_reader(control, self.hear)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._control.fileno() < 0

    def order(self, orders: bytes) -> None:
        """Sends orders; a guard that has gone needs none."""
        with contextlib.suppress(OSError):
            self._control.send(orders)

    def hear(self) -> None:
        """Handles what the guard has said so far."""
        while not self.closed:
            try:
                data = self._control.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.remove_reader(self._control)
                return
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                kind, _, value = line.decode("utf-8", "replace").partition(" ")
                self._on_word(kind, value)

    def close(self) -> None:
        """Hears the last words and closes the socket."""
        self.hear()
        if not self.closed:
            self._loop.remove_reader(self._control)
            self._control.close()
