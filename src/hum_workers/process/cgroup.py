"""Control groups of one cell: killed by one write, limited and counted by the kernel.

Finds where this process may make folders (cgroup v2, also on hybrid hosts, and the memory
controller of v1), makes one for a cell and removes it when the cell is dead. Folders that an
earlier run left behind are swept.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hum_workers.process import proc

PREFIX = "hum-cell-"
FOREIGN_AGE = 60.0
"""Seconds after which an empty folder is left over whose owner can't be seen from here."""


@dataclass(frozen=True)
class Mount:
    """A mounted cgroup hierarchy and the path in it that the mount shows as its top."""

    point: Path
    root: str


def parse_mounts(mountinfo: str) -> tuple[Mount | None, Mount | None]:
    """Finds the v2 hierarchy and the v1 memory controller in /proc/self/mountinfo."""
    unified = memory = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        mount = Mount(Path(point), fields[3])
        if kind[0] == "cgroup2":
            unified = unified or mount
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            memory = memory or mount
    return unified, memory


def parse_own(cgroup: str) -> tuple[str, str]:
    """Returns our paths in v2 and in the v1 memory controller from /proc/self/cgroup."""
    unified = memory = "/"
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            unified = path
        elif "memory" in controllers.split(","):
            memory = path
    return unified, memory


def place(mount: Mount, own: str) -> Path:
    """Returns the folder of the path `own`; the top of the mount when the mount doesn't show it."""
    inside = os.path.relpath(own, mount.root)
    folder = mount.point / inside
    return mount.point if inside.startswith("..") or not folder.is_dir() else folder


def folders() -> tuple[Path | None, Path | None]:
    """Returns where we are: our folder in v2 and in the v1 memory controller."""
    mountinfo = (proc.read_bytes("/proc/self/mountinfo") or b"").decode("utf-8", "replace")
    own = (proc.read_bytes("/proc/self/cgroup") or b"").decode("utf-8", "replace")
    (unified, memory), (own_unified, own_memory) = parse_mounts(mountinfo), parse_own(own)
    return (
        place(unified, own_unified) if unified else None,
        place(memory, own_memory) if memory else None,
    )


def folder_name(cell: str) -> str:
    """Returns a name that tells whose it is: a later run can see whether it is left over."""
    me = proc.read_stat(os.getpid())
    plain = re.sub(r"[^A-Za-z0-9_]", "_", cell)[:64]
    return f"{PREFIX}{plain}-{_space()}-{os.getpid()}-{me.start if me else 0}"


def _space() -> str:
    """Returns the number of our PID namespace: in another one a pid means somebody else."""
    try:
        return "".join(filter(str.isdigit, os.readlink("/proc/self/ns/pid")))
    except OSError:
        return "unknown"


def sweep(parent: Path, age: float = FOREIGN_AGE) -> list[Path]:
    """Removes the empty folders of dead owners and returns them.

    Whether an owner lives is told by pid and start time. One of another PID namespace is not seen
    from here, and may be about to enter its folder: that one goes by its age.
    """
    swept, space = [], _space()
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            *_, where, pid, start = folder.name.rsplit("-", 3)
            owner = proc.read_stat(int(pid))
            if owner is not None and owner.alive and owner.start == int(start):
                continue
            if where == space != "unknown" or time.time() - folder.stat().st_mtime >= age:
                folder.rmdir()  # refused by the kernel while a process is in it
                swept.append(folder)
    return swept


def sweep_here() -> list[Path]:
    """Sweeps wherever a process in our place may have made folders."""
    parents = {parent for own in folders() if own is not None for parent in (own, own.parent)}
    return [folder for parent in sorted(parents) for folder in sweep(parent)]


def write(path: Path, value: str) -> None:
    """Writes a control file. Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def limit_memory(folder: Path, size: int) -> None:
    """Limits the folder to `size` bytes of memory, swap included. Raises: OSError."""
    if (folder / "memory.max").exists():
        write(folder / "memory.max", str(size))
        swap, value = folder / "memory.swap.max", 0
    else:
        write(folder / "memory.limit_in_bytes", str(size))
        swap, value = folder / "memory.memsw.limit_in_bytes", size
    if swap.exists():
        with contextlib.suppress(OSError):
            write(swap, str(value))


def oom_kills(folder: Path) -> int:
    """Returns how many processes of the folder the kernel has ended for want of memory."""
    for name in ("memory.events", "memory.oom_control"):
        text = proc.read_bytes(str(folder / name)) or b""
        if count := re.search(rb"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(count[1])
    return 0


class CellGroup:
    """The folders of one cell; at most one in v2 and one in the v1 memory controller."""

    def __init__(self, name: str, parents: list[Path], memory: int | None) -> None:
        self._memory = memory
        self.folders = [parent / folder_name(name) for parent in parents]

    def create(self) -> None:
        """Makes the folders and sets the limit. Raises: OSError."""
        for folder in self.folders:
            sweep(folder.parent)
            folder.mkdir(exist_ok=True)
            if self._memory is not None and has_memory(folder):
                limit_memory(folder, self._memory)

    def pids(self) -> Iterator[int]:
        """Yields the processes inside, as the host numbers them; one may come twice."""
        for folder in self.folders:
            for pid in (proc.read_bytes(str(folder / "cgroup.procs")) or b"").split():
                if pid != b"0":  # not visible from our own PID namespace
                    yield int(pid)

    def kill(self) -> None:
        """Kills everything inside by one write where the kernel can; never raises."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                write(folder / "cgroup.kill", "1")

    def oom_kills(self) -> int:
        """Returns how many members the kernel has ended for want of memory."""
        return max((oom_kills(folder) for folder in self.folders), default=0)

    def remove(self) -> bool:
        """Removes the folders. Returns False when one is still in use."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders)


def has_memory(folder: Path) -> bool:
    """Tells whether a folder has a memory controller."""
    return any((folder / name).exists() for name in ("memory.max", "memory.limit_in_bytes"))
