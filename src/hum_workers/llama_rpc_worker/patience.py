"""How long a program that is no bee waits for a route (pure).

A bee waits for ever: its slices may come tomorrow. Who asks one prompt on the command line wants to
hear soon what is missing.
"""

from __future__ import annotations

WAIT = 15.0
"""Seconds without a route, and without a slice that is about to be there by itself."""
COMING = 60.0
"""Seconds at most, for slices that are starting or being recycled."""


class Patience:
    """Counts from the first call of `over`. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._hoped = 0.0

    def over(self, now: float, *, expected: bool) -> bool:
        """Says whether to give up; `expected`: a slice will soon be there by itself."""
        if self._began is None:
            self._began = self._hoped = now
        if expected:
            self._hoped = now
        return now > self._hoped + WAIT or now > self._began + COMING
