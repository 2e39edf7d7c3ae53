"""Journal: the turns that are open, on disk, so that the next bee can end what this one could not.

One file an identity, which the lock on its key keeps for one bee at a time. A record is a line,
appended when a turn begins and when humd has read its ending; it holds the sid and nothing of the
prompt. Written through the page cache: it outlives any death of the bee, not one of the machine.
Nothing that is wrong with the file ever stops a start or a turn.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

log = structlog.get_logger()

AGE = 3600.0
"""Seconds after which nobody waits for an ending any more."""
MOST = 8192
"""Turns that are recorded at once; more than an egg of the default limits lets in."""
SID_BYTES = 1024
"""A longer sid is not recorded: the file stays small whatever comes."""
SLACK = 256 * 1024
"""Bytes of records that are over before the file is written anew."""
FILE_BYTES = 64 * 1024 * 1024
"""A larger file is none of ours."""
RETRY = 60.0
"""Seconds before a file that could not be written is tried again."""
_BEGUN = re.compile(rb'\+(\d{1,18}) (\d{1,18}) ("[^\n]*")')
_ENDED = re.compile(rb"-(\d{1,18})")


class Journal:
    """The open turns of one bee. `owed` are those of an earlier one: number and sid."""

    def __init__(self, path: Path, hid: str, *, now: Callable[[], float] = time.time) -> None:
        """Reads what an earlier bee left, and begins the file anew with it."""
        self._path = path
        self._header = b"hum_workers journal 1 %b\n" % hid.encode()
        self._now = now
        self._open: dict[int, bytes] = {}
        """Records of turns that have begun, by number."""
        self._last = 0
        self._live = self._size = 0
        self._fd = -1
        self._retry = 0.0
        self._warned: set[str] = set()
        self.owed: list[tuple[int, str]] = []
        for at, sid in self._read():
            self._last += 1
            self.owed.append((self._last, sid))
            self._keep(self._last, at, sid)
        self._rewrite()

    def begin(self, sid: str) -> int:
        """Records that a turn of this sid has begun; returns its number for `end`."""
        self._last += 1
        if len(self._open) >= MOST:
            self._warn("more turns are open than are recorded")
        elif (record := self._keep(self._last, int(self._now() * 1000), sid)) is not None:
            self._append(record)
        return self._last

    def end(self, number: int) -> None:
        """Records that the ending of a turn has been read; nothing for one that is not open."""
        record = self._open.pop(number, None)
        if record is None:
            return
        self._live -= len(record)
        self._append(b"-%d\n" % number)
        if self._size > self._live + len(self._header) + max(SLACK, self._live):
            self._rewrite()

    def close(self) -> None:
        """Closes the file; one without open turns is removed."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if not self._open:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _keep(self, number: int, at: int, sid: str) -> bytes | None:
        try:
            name = msgspec.json.encode(sid)
        except (UnicodeEncodeError, ValueError):
            return None
        if len(name) > SID_BYTES:
            self._warn(f"a sid has {len(name)} bytes, and up to {SID_BYTES} are recorded")
            return None
        record = b"+%d %d %b\n" % (number, at, name)
        self._open[number] = record
        self._live += len(record)
        return record

    def _append(self, record: bytes) -> None:
        if self._fd < 0:
            if self._now() >= self._retry:
                self._rewrite()
            return
        try:
            written = os.write(self._fd, record)
        except OSError as error:
            self._lose(error)
            return
        self._size += written
        if written < len(record):  # the disk is full; what follows would join the torn record
            self._lose(OSError(0, "no room for a whole record"))

    def _rewrite(self) -> None:
        """Writes header and open turns to a new file, which takes the place of the old one."""
        draft = self._path.with_name(f".{self._path.name}.draft")
        data = b"".join([self._header, *self._open.values()])
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = -1
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(draft, flags, 0o600)
            if os.write(fd, data) < len(data):
                raise OSError(0, "no room for all open turns")
            os.rename(draft, self._path)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            self._lose(error)
            return
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, len(data)

    def _lose(self, error: OSError) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._retry = self._now() + RETRY
        self._warn(f"it can't be written: {error.strerror}")

    def _read(self) -> list[tuple[int, str]]:
        """Returns begin (ms since 1970) and sid of the turns that an earlier bee left open."""
        try:
            data = _contents(self._path)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            self._warn(f"it can't be read: {error}")
            return []
        if not data.startswith(self._header):
            self._warn("it is not this bee's; it is kept beside, with .odd behind its name")
            with contextlib.suppress(OSError):
                self._path.rename(self._path.with_name(self._path.name + ".odd"))
            return []
        return self._still_open(data)

    def _still_open(self, data: bytes) -> list[tuple[int, str]]:
        oldest = (self._now() - AGE) * 1000
        return [entry for entry in open_turns(data) if entry[0] >= oldest and entry[1]][:MOST]

    def _warn(self, reason: str) -> None:
        kind = reason.partition(":")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("worker.journal", file=str(self._path), reason=reason)


def path(state: Path, hive: str, tag: str) -> Path:
    """Returns where the journal of a bee lies, below the state folder of its user."""
    return state / "hum" / "workers" / hive / f"open.{tag}.journal"


def open_turns(data: bytes) -> list[tuple[int, str]]:
    """Returns begin (ms since 1970) and sid of the turns without an end; reads what is whole."""
    found: dict[bytes, tuple[int, str]] = {}
    _header, *lines, _torn = (b"\n" + data).split(b"\n")
    for line in lines:
        if begun := _BEGUN.fullmatch(line):
            try:
                sid = msgspec.json.decode(begun[3], type=str)
            except ValueError:
                continue
            found[begun[1]] = (int(begun[2]), sid)
        elif ended := _ENDED.fullmatch(line):
            found.pop(ended[1], None)
    return list(found.values())


def _contents(file: Path) -> bytes:
    """Reads a regular file of at most FILE_BYTES.

    Raises:
        OSError: it can't be read.
        ValueError: it is no file of that kind.
    """
    # Without O_NONBLOCK the open of a pipe would wait for its writer.
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        if found.st_size > FILE_BYTES:
            raise ValueError(f"{found.st_size} bytes are too many")
        return stream.read(FILE_BYTES)
