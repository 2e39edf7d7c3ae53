"""The token bucket in front of humd: how many tones may be written now. Pure; the clock comes in.

humd passes a worker's tones on as fast as it reads them, into a queue of 1,024 to the asker, and
drops what does not fit (thrum, section 2). So what counts is how fast humd *reads*: tones that lie
unread in the socket, because humd was stopped, would all reach the asker at once when it goes on.
They keep their place in the bucket until humd is known to have read them, so tokens + unread never
exceed `burst`, and in any t seconds humd reads at most burst + rate * t tones, whatever happened.
"""

from __future__ import annotations

from collections.abc import Callable

SHORTEST_WAIT = 0.001
"""Seconds. A uvloop timer below 1 ms fires at once, and a loop on one spins."""
UNREAD_WAIT = 0.005
"""Seconds between two looks at a socket that humd does not read; fewer in the beginning."""
_UNPACED = 1 << 30
_ROUNDING = 1e-6
"""Of a token: sums of floats may miss a whole one by less than this. It is accounted for."""


class Bucket:
    """`rate` tones a second, `burst` at once; rate 0 lets everything pass."""

    __slots__ = (
        "_ask_at",
        "_last",
        "_now",
        "_tokens",
        "_unread",
        "_wrote",
        "all_read",
        "burst",
        "rate",
    )

    def __init__(self, rate: float, burst: int, now: Callable[[], float]) -> None:
        if rate < 0 or burst < 1:
            raise ValueError(f"pace {rate} must not be negative, burst {burst} at least 1")
        self.rate = rate
        self.burst = burst
        self.all_read: Callable[[], bool] = lambda: True
        """Says whether humd has read all that was written; set by who owns the socket."""
        self._now = now
        self._tokens = float(burst)
        self._last = self._wrote = now()
        self._unread = 0
        # A look costs a system call: one for every few tones is enough, and what was written
        # since the last one is all that the burst is short of.
        self._ask_at = max(1, burst // 16)

    def allowance(self) -> int:
        """Returns how many tones may go now."""
        if not self.rate:
            return _UNPACED
        self._refill()
        if self._unread >= self._ask_at and self.all_read():
            self._unread = 0
        return int(self._tokens + _ROUNDING)

    def take(self, count: int) -> None:
        """Notes that `count` tones are being written; a few more than the allowance are a debt."""
        if self.rate and count:
            self._tokens -= count
            self._unread += count
            self._wrote = self._last

    def wait(self) -> float:
        """Returns the seconds until one more tone may go, at least `SHORTEST_WAIT`."""
        if not self.rate:
            return SHORTEST_WAIT
        self._refill()
        if self._unread >= self.burst:
            if not self.all_read():
                return max(SHORTEST_WAIT, min(UNREAD_WAIT, (self._last - self._wrote) / 4))
            self._unread = 0
        return max(SHORTEST_WAIT, (1 - self._tokens) / self.rate)

    def forget_unread(self) -> None:
        """The connection is gone, and what was unread with it. Tokens come back with time only."""
        self._refill()  # what lay unread may have been read just before the end
        self._unread = 0

    def _refill(self) -> None:
        now = self._now()
        tokens = self._tokens + (now - self._last) * self.rate
        room = self.burst - self._unread
        self._tokens = tokens if tokens < room else float(room)
        self._last = now
