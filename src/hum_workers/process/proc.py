"""Facts about processes from /proc: pure parsers first, then the few reads that feed them.

A process is its pid and its start time together: pids are used again. Everything is best effort; a
process that has gone reads as None, never as an error.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
DEAD_STATES = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Stat:
    """One line of /proc/PID/stat. `start` and `cpu` are in clock ticks, `rss` in pages."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    cpu: int
    start: int
    rss: int
    threads: int = 1

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}, state {self.state})"

    @property
    def alive(self) -> bool:
        """False for a zombie: signals still find it, but it holds nothing any more.

        A process whose first thread has ended looks like one while its other threads run on.
        """
        return self.state not in DEAD_STATES or self.threads > 1

    @property
    def identity(self) -> tuple[int, int]:
        """Pid and start time: never the same for two processes."""
        return self.pid, self.start


def parse_stat(text: bytes) -> Stat | None:
    """Reads one stat line; the name may hold spaces and brackets. None when it is none."""
    head, _, tail = text.rpartition(b")")
    pid, _, name = head.partition(b" (")
    fields = tail.split()
    try:
        return Stat(
            pid=int(pid),
            name=name.decode("utf-8", "replace"),
            state=fields[0].decode("ascii"),
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            cpu=int(fields[11]) + int(fields[12]),
            start=int(fields[19]),
            rss=int(fields[21]),
            threads=int(fields[17]),
        )
    except (IndexError, ValueError):
        return None


def descendants(
    table: Mapping[int, Stat], roots: Iterable[int], without: Iterable[int] = ()
) -> list[int]:
    """Returns the pids below `roots`, the nearest first, without the subtrees in `without`."""
    children: dict[int, list[int]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    skip = set(without)
    queue = list(roots)
    found: list[int] = []
    for pid in queue:
        fresh = [child for child in children.get(pid, ()) if child not in skip]
        skip.update(fresh)
        found += fresh
        queue += fresh
    return found


def children_in(table: Mapping[int, Stat], parents: Iterable[int]) -> list[int]:
    """Returns the pids of the direct children of `parents`."""
    wanted = set(parents)
    return [stat.pid for stat in table.values() if stat.parent in wanted]


def parse_innermost_pid(status: bytes) -> int | None:
    """Returns the pid by which the process knows itself (NSpid of /proc/PID/status)."""
    for line in status.splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return None


def read_bytes(path: str) -> bytes | None:
    """Reads a small file of a pseudo file system whole; None when it can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_stat(pid: int) -> Stat | None:
    """Returns what the process `pid` is right now, None when there is none."""
    text = read_bytes(f"/proc/{pid}/stat")
    return None if text is None else parse_stat(text)


def zombie_status(pid: int, start: int) -> int | None:
    """Returns the wait status of a process that nobody has reaped yet, else None."""
    text = read_bytes(f"/proc/{pid}/stat")
    stat = None if text is None else parse_stat(text)
    if text is None or stat is None or stat.start != start or stat.state not in DEAD_STATES:
        return None
    return int(text.split()[-1])


def scan() -> dict[int, Stat]:
    """Returns every process that /proc shows: 15 µs each, so not for once a second on big hosts."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    stats = (read_stat(int(name)) for name in names if name.isdigit())
    return {stat.pid: stat for stat in stats if stat is not None}


def children(pid: int) -> list[int]:
    """Returns the children that the kernel lists for `pid`; may miss one that comes or goes."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    lists = (read_bytes(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for listed in lists if listed for child in listed.split()]


def walk(root: int) -> list[int]:
    """Returns the pids below `root` by the kernel's lists: its cost grows with the tree only."""
    queue = [root]
    for pid in queue:
        queue += [child for child in children(pid) if child not in queue]
    return queue[1:]


def has_children_lists() -> bool:
    """Tells whether this kernel has the lists that `children` and `walk` read."""
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def innermost_pid(pid: int) -> int | None:
    """Returns the pid of `pid` inside its own PID namespace."""
    status = read_bytes(f"/proc/{pid}/status")
    return None if status is None else parse_innermost_pid(status)


def fd_count(pid: int) -> int:
    """Returns the number of open files; 0 when they can't be seen."""
    path = f"/proc/{pid}/fd"
    try:
        # Since Linux 6.2 the folder's size is the count, without listing it.
        return os.stat(path).st_size or len(os.listdir(path))
    except OSError:
        return 0


def send(stat: Stat, number: int) -> bool:
    """Sends a signal to exactly this process, never to one that got its pid since."""
    try:
        fd = os.pidfd_open(stat.pid)
    except OSError:
        return False
    try:
        now = read_stat(stat.pid)
        if now is None or now.start != stat.start:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
