"""Whether an engine gets on with the turns it has (pure: the clock comes in as a parameter).

A page that says 200 proves nothing: a frozen engine goes on saying it. So what counts is what it
does: an event of a turn, or a counter of its own that moves (iterations, tokens, prefill included).
"""

from __future__ import annotations

from collections.abc import Mapping

LONGEST_QUIET = 5.0
"""Seconds without an event after which the engine's counters are read, and between two readings."""


class Progress:
    """The time since an engine last did something, judged against `timeout` seconds (0: never)."""

    def __init__(self, timeout: float, now: float) -> None:
        self.timeout = timeout
        self.quiet = min(timeout / 4, LONGEST_QUIET)
        self._since = now
        self._asked = now
        self._beat = -1
        self._counters: Mapping[str, float] = {}

    def beat(self, now: float, beat: int, *, busy: bool) -> None:
        """Takes the number of events so far; without work, or with nobody reading, time stands."""
        if beat != self._beat or not busy:
            self._beat = beat
            self._since = self._asked = now

    def due(self, now: float) -> bool:
        """Returns whether the engine's counters are to be read now."""
        return self.timeout > 0 and now - self._asked >= self.quiet

    def counters(self, now: float, values: Mapping[str, float] | None) -> None:
        """Takes the counters as read just now; None: the engine did not answer."""
        self._asked = now
        if values and values != self._counters:
            # The first reading after a while may only tell of what went before it.
            self._since = now if self._counters else self._since
            self._counters = dict(values)

    def stalled(self, now: float) -> bool:
        """Returns whether nothing has moved for too long."""
        return self.timeout > 0 and now - self._since >= self.timeout
