"""Leash: how long a tender may be silent, or take to leave, before it is lost.

A stopped process is alive by every other sign. Silence is counted in ticks of our own loop, so that
a bee that was stopped itself does not blame its tenders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SILENCE = 40.0
"""Seconds without a frame: three heartbeats and some; a tender's last wait (30 s) is silent."""
LEAVE = 5.0
"""Seconds beyond its grace for a tender that was told to end."""
ABORT = 2.0
"""Seconds for a tender whose pipes were closed on it."""
TICKS = 4


class Leash:
    """Calls `on_lost` with a reason, at most once, unless `close` comes first."""

    def __init__(self, on_lost: Callable[[str], None], silence: float | None = None) -> None:
        self._on_lost = on_lost
        self._silence = SILENCE if silence is None else silence
        self._loop = asyncio.get_running_loop()
        self.quiet = 0
        """Ticks without a frame; whoever hears one sets it to 0."""
        self._leave: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """There is a tender now."""
        self._tick = self._loop.call_later(self._silence / TICKS, self._count)

    def within(self, seconds: float, why: str) -> None:
        """The tender must have gone in so many seconds; an earlier deadline stays."""
        if self._tick is None:
            return
        if self._leave is not None and self._leave.when() <= self._loop.time() + seconds:
            return
        if self._leave is not None:
            self._leave.cancel()
        self._leave = self._loop.call_later(seconds, self._lost, why)

    def close(self) -> None:
        """Waits for nothing any more."""
        if self._tick is not None:
            self._tick.cancel()
        if self._leave is not None:
            self._leave.cancel()

    def _count(self) -> None:
        self.quiet += 1
        if self.quiet > TICKS:
            self._lost(f"its tender said nothing for {self._silence:g} s; was it stopped?")
            return
        self._tick = self._loop.call_later(self._silence / TICKS, self._count)

    def _lost(self, reason: str) -> None:
        self.close()
        self._on_lost(reason)
