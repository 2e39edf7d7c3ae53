"""The memory that the control groups above this process leave it, as in a container. Only read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hum_workers.process import cgroup

NO_LIMIT = 1 << 60
"""Bytes; version 1 writes a number above it for none."""
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of version 2 and 1: the limit, what is used, and what of that is given back on demand."""


def groups() -> list[Path]:
    """Returns the folders of our control groups, from ours to the top."""
    return [folder for own in cgroup.folders() if own is not None for folder in _upward(own)]


def _upward(folder: Path) -> Iterator[Path]:
    while (folder / "cgroup.procs").exists():
        yield folder
        folder = folder.parent


def limit(folder: Path) -> tuple[int, int] | None:
    """Returns a group's limit and the bytes of it that are in use; None for one without a limit."""
    for most_file, used_file, idle in _FILES:
        most, used = _number(folder / most_file), _number(folder / used_file)
        if most is None or used is None or most >= NO_LIMIT:
            continue
        found = re.search(rf"^{idle} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
        return most, max(0, used - (int(found[1]) if found else 0))
    return None


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
