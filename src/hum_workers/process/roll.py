"""Roll: every process of an engine's tree by pidfd, so that the end of one is known at once.

Engines notice the death of their own helpers late: vLLM takes up to 15 s, and its parent process
goes on answering meanwhile. The pidfd fires within a millisecond, whoever the parent is. How such
a process ended is its parent's to know; the kernel tells us too: by its stat while it is a zombie,
and since Linux 6.15 by the pidfd afterwards.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hum_workers.process import proc
from hum_workers.process.proc import Stat

TITLE = 60
"""Letters of a process title at most."""
_GET_INFO = 0xC040FF0B  # PIDFD_GET_INFO with the first version of struct pidfd_info
_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")


@dataclass(frozen=True)
class Fallen:
    """A process of the tree that has ended. `status` is negative for a signal, None: unknown."""

    pid: int
    title: str
    status: int | None

    def __str__(self) -> str:
        return f"{self.title} (pid {self.pid}) {how(self.status)}"


def how(status: int | None) -> str:
    """Returns in words how a process ended."""
    if status is None:
        return "ended"
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


class Roll:
    """Holds a pidfd for each member that was called; `on_fallen` hears of those that are needed.

    Needed is a member whose title or command line holds one of `needed`. Titles are read again at
    each call until they match: a process takes its own some seconds after its start.
    """

    def __init__(self, needed: Sequence[str], on_fallen: Callable[[Fallen], None]) -> None:
        self._needed = [text.encode() for text in needed]
        self._on_fallen = on_fallen
        self._loop = asyncio.get_running_loop()
        self._fds: dict[tuple[int, int], int] = {}
        self._titles: dict[tuple[int, int], str] = {}
        self._sure: set[tuple[int, int]] = set()
        """Members that were needed by their own title, not only by a word in their command line."""

    @property
    def needed(self) -> list[int]:
        """Pids of the live members that the engine needs."""
        return [pid for pid, _ in self._titles]

    def call(self, members: Iterable[Stat]) -> None:
        """Takes the live members as found just now."""
        if not self._needed:
            return
        for member in members:
            if member.identity not in self._fds:
                self._enlist(member)
            if member.identity in self._fds:  # a fork has its parent's title until it has its own
                self._match(member)

    def close(self) -> None:
        """Watches nobody any more."""
        for fd in self._fds.values():
            self._loop.remove_reader(fd)
            os.close(fd)
        self._fds.clear()
        self._titles.clear()
        self._sure.clear()

    def _enlist(self, member: Stat) -> None:
        try:
            fd = os.pidfd_open(member.pid)
        except OSError:
            return
        now = proc.read_stat(member.pid)
        if now is None or now.identity != member.identity:
            os.close(fd)
            return
        self._fds[member.identity] = fd
        self._loop.add_reader(fd, self._ended, member.identity)

    def _match(self, member: Stat) -> None:
        """Notes the title of a member that is needed."""
        line = proc.read_bytes(f"/proc/{member.pid}/cmdline") or b""
        own = (line.partition(b"\0")[0].strip(), member.name.encode())
        for text in self._needed:
            titles = [title for title in own if text in title]
            if titles:
                self._titles[member.identity] = titles[0].decode("utf-8", "replace")[:TITLE]
                self._sure.add(member.identity)
                return
            if text in line:
                self._titles.setdefault(member.identity, text.decode())

    def _ended(self, identity: tuple[int, int]) -> None:
        fd = self._fds.pop(identity)
        self._loop.remove_reader(fd)
        title = self._titles.pop(identity, "")
        self._sure.discard(identity)
        status = _status(identity, fd) if title else None
        os.close(fd)
        if title:
            self._on_fallen(Fallen(identity[0], title, status))


def _status(identity: tuple[int, int], fd: int) -> int | None:
    raw = proc.zombie_status(*identity)
    if raw is None:
        raw = _reaped_status(fd)
    return None if raw is None else os.waitstatus_to_exitcode(raw)


def _reaped_status(fd: int) -> int | None:
    """Returns the wait status that the kernel keeps behind a pidfd; None where it keeps none."""
    asked = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(fd, _GET_INFO, asked)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(asked)
    return int(status) if mask & _INFO_EXIT else None
