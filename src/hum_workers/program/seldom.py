"""Seldom: a limit on log lines that somebody outside can cause, by reason (pure)."""

from __future__ import annotations

from collections.abc import Callable

LINES = 10
"""Lines of one reason in a minute."""
WINDOW = 60.0
MOST_REASONS = 256
"""Reasons told apart; those beyond share one count."""


class Seldom:
    """Says whether a line may be logged, and how many of its reason were left out before it."""

    def __init__(self, now: Callable[[], float], lines: int = LINES) -> None:
        self._now = now
        self._lines = lines
        self._seen: dict[str, tuple[float, int]] = {}

    def left_out(self, reason: str) -> int | None:
        """Counts a line: None when it must not be logged, else how many were left out.

        So the count comes with the first line of a later minute.
        """
        if reason not in self._seen and len(self._seen) >= MOST_REASONS:
            reason = ""
        now = self._now()
        since, count = self._seen.get(reason, (now, 0))
        missed = 0
        if now - since >= WINDOW:
            since, missed, count = now, max(0, count - self._lines), 0
        self._seen[reason] = since, count + 1
        return missed if count < self._lines else None
