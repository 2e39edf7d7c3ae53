"""Claims: whose a cell's folder is, written into it: its tender and its bee, as pid and start time.

A claim counts only in the boot and the PID namespace in which it was written.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from hum_workers.process import proc

FILE = "owner.json"
BYTES = 4096


class _Claim(msgspec.Struct):
    boot: str
    space: str
    owners: list[tuple[int, int]]


def write(folder: Path) -> None:
    """Claims the folder for this process and its parent. Raises: OSError."""
    boot, space = here()
    stats = (proc.read_stat(pid) for pid in (os.getpid(), os.getppid()))
    claim = _Claim(boot, space, [stat.identity for stat in stats if stat is not None])
    (folder / FILE).write_bytes(msgspec.json.encode(claim))


def abandoned(folder: Path) -> bool | None:
    """Returns whether all who claimed the folder are dead; None when nobody has claimed it."""
    try:
        with (folder / FILE).open("rb") as file:
            claim = msgspec.json.decode(file.read(BYTES), type=_Claim)
    except (OSError, ValueError, RecursionError):
        return None
    boot, space = here()
    if claim.boot != boot:
        return True
    if claim.space != space:
        return False
    now = {pid: proc.read_stat(pid) for pid, _ in claim.owners}
    return not any(
        (stat := now[pid]) is not None and stat.alive and stat.identity == (pid, start)
        for pid, start in claim.owners
    )


def here() -> tuple[str, str]:
    """Returns what tells this boot, and this PID namespace, from others."""
    boot = (proc.read_bytes("/proc/sys/kernel/random/boot_id") or b"").decode().strip()
    try:
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return boot, ""
