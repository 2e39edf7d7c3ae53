"""Who this bee is: an Ed25519 key file, the hid that follows from it, and the lock on it.

The file is created once and never overwritten. A running bee holds an exclusive lock on it, since
humd silently evicts the older of two bees with one hid (thrum, section 4). The lock goes with the
process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hum_workers.errors import IdentityError

SEED_BYTES = 32
LOCK_PATIENCE = 0.5
"""Seconds that `load` tries for the lock: a bee that is on its way out, or `peek`, may hold it."""
_LOCK_RETRY = 0.02


def hid_of(seed: bytes) -> str:
    """Returns the hid of a worker bee: from the sha256 of the raw Ed25519 public key."""
    # Imported here: it costs 40 ms, and `--help` needs no key.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return "wbee_" + hashlib.sha256(public).hexdigest()


def key_path(hive: str, name: str | None, state_home: Path) -> Path:
    """Returns where the seed of this bee lies.

    Raises:
        IdentityError: the name can't be part of a file name.
    """
    if name and (name != name.strip() or not name.isprintable() or "/" in name):
        raise IdentityError(
            f"bee.name {name!r} becomes part of a file name: use letters and dashes"
        )
    file = f"{hive}.{name}.key" if name else f"{hive}.key"
    return state_home / "hum" / "bees" / file


def seed_of(hive: str, name: str | None, state_home: Path) -> tuple[str, bytes]:
    """Returns hid and seed of a bee that may run at this moment; a new key where there is none.

    Raises:
        IdentityError: the key is unusable.
    """
    path = key_path(hive, name, state_home)
    with _named(path):
        if not path.exists():
            _create(path)
        fd = _opened(path)
        try:
            seed = _seed(fd, path)
        finally:
            os.close(fd)
    return hid_of(seed), seed


@dataclass(frozen=True, kw_only=True)
class Peeked:
    """What `Identity.peek` found. `hid` is None where there is no key yet."""

    path: Path
    hid: str | None
    held: bool
    """Another process runs with this key."""


class Identity:
    """A bee's identity, locked until `close`."""

    def __init__(self, path: Path, seed: bytes, fd: int) -> None:
        self.path = path
        self.seed = seed
        """The secret half; it never reaches a log."""
        self.hid = hid_of(seed)
        self._fd: int | None = fd

    def __repr__(self) -> str:
        return f"Identity({self.hid}, {self.path})"

    @classmethod
    def load(cls, hive: str, name: str | None, state_home: Path) -> Self:
        """Reads the key, creating it when there is none, and locks it. Blocks up to 0.5 s.

        Raises:
            IdentityError: the key is unusable, or another bee runs with it.
        """
        path = key_path(hive, name, state_home)
        with _named(path):
            if not path.exists():
                _create(path)
            fd = _locked(path)
            try:
                return cls(path, _seed(fd, path), fd)
            except BaseException:
                os.close(fd)
                raise

    @staticmethod
    def peek(hive: str, name: str | None, state_home: Path) -> Peeked:
        """Looks at the key without creating or keeping anything.

        Raises:
            IdentityError: the key is unusable.
        """
        path = key_path(hive, name, state_home)
        with _named(path):
            try:
                fd = _opened(path)
            except FileNotFoundError:
                return Peeked(path=path, hid=None, held=False)
            try:
                return Peeked(path=path, hid=hid_of(_seed(fd, path)), held=not _try_lock(fd))
            finally:
                os.close(fd)

    def close(self) -> None:
        """Gives the lock back. Safe to call twice."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IdentityError(f"bee key {path} can't be used: {error.strerror}") from error


def _create(path: Path) -> None:
    """Writes a new seed, complete or not at all, and never over one that another bee just made."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o600)
            file.write(os.urandom(SEED_BYTES))
            file.flush()
            os.fsync(fd)
        _publish(draft, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _publish(draft: str, path: Path) -> None:
    # A rename would replace what is there; a link refuses. Some file systems have no links.
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError:
        os.rename(draft, path)


def _locked(path: Path) -> int:
    """Returns a descriptor that holds the lock on the file that `path` names now."""
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        fd = _opened(path)
        try:
            # Between open and lock the file may have been replaced.
            if _try_lock(fd) and os.path.samestat(os.fstat(fd), os.stat(path)):
                kept, fd = fd, -1
                return kept
        finally:
            if fd >= 0:
                os.close(fd)
        if time.monotonic() > deadline:
            raise IdentityError(
                f"another running bee holds the key {path}: set `bee.name` in the egg, so that "
                "this one gets a key of its own"
            )
        time.sleep(_LOCK_RETRY)


def _opened(path: Path) -> int:
    """Opens the key; a pipe or a device in its place is refused and not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise IdentityError(f"bee key {path} is no regular file: move it away")
    return fd


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _seed(fd: int, path: Path) -> bytes:
    seed = os.pread(fd, SEED_BYTES + 1, 0)
    if len(seed) != SEED_BYTES:
        size = os.fstat(fd).st_size
        raise IdentityError(
            f"bee key {path} has {size} bytes and not {SEED_BYTES}: restore it from a copy, "
            "or move it away to get a new identity"
        )
    return seed
