"""A log file that can't fill the disk: two files, the older one named `.1`, each up to a limit."""

from __future__ import annotations

import os
from pathlib import Path


class LogFile:
    """Appends to `path` (0600); over `limit` bytes it becomes `path.1` and a new one begins.

    A disk that is full or gone costs lines, never the caller: `lost` counts the bytes.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._fd = -1
        self._size = 0
        self.lost = 0

    def write(self, data: bytes) -> None:
        """Appends whole lines; never raises."""
        try:
            if self._fd < 0:
                self._open()
            if self._size and self._size + len(data) > self._limit:
                self._rotate()
            # One write may be larger than the limit; then the end is what counts.
            written = os.write(self._fd, data[-self._limit :])
            self._size += written
            self.lost += len(data) - written
        except OSError:
            self.lost += len(data)

    def close(self) -> None:
        """Closes the file; a later write opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        self._fd = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self.close()
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._open()
