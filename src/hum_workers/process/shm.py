"""Shared memory that a killed engine leaves in /dev/shm: found while it lives, swept afterwards.

The names are random and the kernel keeps no owner, so nothing is swept for its name: only a segment
that a member of this tree has mapped, that is still the same file, and that nobody maps any more.
What a process maps is told by device and inode: glibc makes a semaphore (`sem.mp-*`) under another
name, links it to its own and unlinks the first, so that its maker's maps show a deleted file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from hum_workers.process import proc

FOLDER = "/dev/shm"
RECORD = "shm.json"
"""In the folder of a cell: what a tender that is killed leaves to the next one."""

Segments = dict[str, list[int]]
"""Name to device and inode."""


def mapped(pids: Iterable[int], folder: str = FOLDER) -> Segments:
    """Returns the segments that these processes have mapped, as far as they still have a name."""
    prefix = os.fsencode(folder) + b"/"
    held: set[tuple[int, int]] = set()
    for pid in pids:
        for line in (proc.read_bytes(f"/proc/{pid}/maps") or b"").splitlines():
            if prefix in line:
                held.add(_identity(line))
    if not held:
        return {}
    inodes = {inode for _, inode in held}
    segments: Segments = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.inode() not in inodes:
                continue
            with contextlib.suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                if (stat.st_dev, stat.st_ino) in held and stat.st_uid == os.getuid():
                    segments[entry.name] = [stat.st_dev, stat.st_ino]
    return segments


def _identity(line: bytes) -> tuple[int, int]:
    """Returns device and inode of a line of /proc/PID/maps."""
    _, _, _, device, inode, *_ = line.split(None, 5)
    major, _, minor = device.partition(b":")
    return os.makedev(int(major, 16), int(minor, 16)), int(inode)


def sweep(segments: Segments, folder: str = FOLDER) -> list[str]:
    """Removes those of the segments that nobody maps any more, and returns their names."""
    if not segments:
        return []
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    used = mapped(pids, folder)
    swept = []
    for name, identity in segments.items():
        path = f"{folder}/{name}"
        with contextlib.suppress(OSError):
            stat = os.lstat(path)
            if name not in used and [stat.st_dev, stat.st_ino] == identity:
                os.unlink(path)
                swept.append(name)
    return sorted(swept)


def record(private: Path, segments: Segments) -> None:
    """Writes down what is to be swept if we are killed; a full disk is no reason to fail."""
    with contextlib.suppress(OSError):
        (private / RECORD).write_text(json.dumps(segments))


def sweep_recorded(private: Path, folder: str = FOLDER) -> list[str]:
    """Sweeps what a tender that was killed has written down in the folder of its cell."""
    try:
        segments = json.loads((private / RECORD).read_bytes())
    except (OSError, ValueError):
        return []
    if not isinstance(segments, dict):
        return []
    plain = {name: found for name, found in segments.items() if "/" not in name}
    return sweep(plain, folder)
