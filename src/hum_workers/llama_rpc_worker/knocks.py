"""Who may knock at a slice's door, and which stranger has to go (pure; the clock comes in).

A key exchange costs the bee a millisecond of its loop, and a stranger costs a place until it is
proven. Both are shared out by host, so that one that storms the door keeps no other out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hum_workers.thrum.bucket import Bucket

MOST_HOSTS = 256
"""Hosts that are told apart; with more, all start again."""


class HasHost(Protocol):
    """A connection that came from somewhere."""

    @property
    def host(self) -> str:
        """The other side's address without its port."""
        ...


Knock = TypeVar("Knock", bound=HasHost)


class Knocks:
    """New connections by host: `rate` a second, `burst` at once."""

    def __init__(self, rate: float, burst: int, now: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._now = now
        self._hosts: dict[str, Bucket] = {}

    def admit(self, host: str) -> bool:
        """Says whether one more connection of this host may come in, and counts it then."""
        bucket = self._hosts.get(host)
        if bucket is None:
            if len(self._hosts) >= MOST_HOSTS:
                self._hosts.clear()
            bucket = self._hosts[host] = Bucket(self._rate, self._burst, self._now)
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
    """Returns the oldest of the host that has most of them; `strangers` are in order of age."""
    counts = Counter(stranger.host for stranger in strangers)
    most = max(counts.values())
    return next(stranger for stranger in strangers if counts[stranger.host] == most)
