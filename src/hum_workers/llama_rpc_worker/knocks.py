"""Who may knock at a slice's door, and which stranger has to go (pure; the clock comes in).

A key exchange costs the bee a millisecond of its loop, and a stranger costs a place until it is
proven. Both are shared out by origin, a host or a user of this one, so that one that storms the
door keeps no other out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hum_workers.thrum.bucket import Bucket

MOST_ORIGINS = 256
"""Origins that are told apart; with more, all start again."""


class HasOrigin(Protocol):
    """A connection that came from somewhere."""

    @property
    def origin(self) -> str:
        """Who it is, as far as nobody can be many; see `loopback.origin`."""
        ...


Knock = TypeVar("Knock", bound=HasOrigin)


class Knocks:
    """New connections by origin: `rate` a second, `burst` at once."""

    def __init__(self, rate: float, burst: int, now: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._now = now
        self._origins: dict[str, Bucket] = {}

    def admit(self, origin: str) -> bool:
        """Says whether one more connection of this origin may come in, and counts it then."""
        bucket = self._origins.get(origin)
        if bucket is None:
            if len(self._origins) >= MOST_ORIGINS:
                self._origins.clear()
            bucket = self._origins[origin] = Bucket(self._rate, self._burst, self._now)
        if bucket.allowance() < 1:
            return False
        bucket.take(1)
        return True


class Seldom:
    """Which of many lines that say the same are written: `rate` a second, `burst` at once."""

    def __init__(self, rate: float, burst: int, now: Callable[[], float]) -> None:
        self._bucket = Bucket(rate, burst, now)
        self._untold = 0

    def admit(self) -> int | None:
        """Returns how many were left out since the last one; None: this one is, too."""
        if self._bucket.allowance() < 1:
            self._untold += 1
            return None
        self._bucket.take(1)
        untold, self._untold = self._untold, 0
        return untold


def has_to_go(strangers: Sequence[Knock]) -> Knock:
    """Returns the oldest of the origin that has most of them; `strangers` are in order of age."""
    counts = Counter(stranger.origin for stranger in strangers)
    most = max(counts.values())
    return next(stranger for stranger in strangers if counts[stranger.origin] == most)
