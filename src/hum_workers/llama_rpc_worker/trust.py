"""Whom a bee lets in, and whom it believes: a hid is the hash of a bee's public key.

Named hids alone, or with none named the bees whose keys lie in the same state folder: who can read
that folder *is* this user on this machine. It is read anew each time, so that a new bee is known.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

from hum_workers.thrum.identity import SEED_BYTES, hid_of

MOST_KEYS = 256
"""Key files that are looked at; a folder with more is not one of bees."""


class Trust:
    """The bees that are let in. Holds no key, only looks."""

    def __init__(self, named: Collection[str], state_home: Path) -> None:
        """`named` are hids; empty: the bees of `state_home` are meant."""
        self._named = frozenset(named)
        self._folder = state_home / "hum" / "bees"

    def __str__(self) -> str:
        """Who is trusted, as part of a sentence."""
        if self._named:
            return "the bees that its egg names"
        return f"the bees whose keys lie in {self._folder}"

    def knows(self, hid: str) -> bool:
        """Says whether this bee is let in now. May read some small files."""
        if self._named:
            return hid in self._named
        return any(hid_of(seed) == hid for seed in _seeds(self._folder))


def _seeds(folder: Path) -> Iterator[bytes]:
    """Yields the seeds of the bees that this user runs."""
    for path in islice(sorted(folder.glob("*.key")), MOST_KEYS):
        seed = _seed(path)
        if seed is not None:
            yield seed


def _seed(path: Path) -> bytes | None:
    """Returns a bee's seed; None: it is no bee's key, or not of this user."""
    try:
        # A pipe in its place must not hold up the loop.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            return None
        seed = os.pread(fd, SEED_BYTES + 1, 0)
    except OSError:
        return None
    finally:
        os.close(fd)
    return seed if len(seed) == SEED_BYTES else None
