"""How the time of an orderly stop is shared out (pure).

systemd, and hum's orchd with it, kills after 90 s whatever is left of a service that stops.
"""

from __future__ import annotations

TOTAL = 80.0
"""Seconds of a whole stop, so that ten are left for a machine that is slow."""
WORDS = 3.0
"""Seconds for turns that were told to end, and again for humd to echo the endings."""
KILL = 10.0
"""Seconds for killed cells to be dead; the kernel or the guard needs milliseconds."""


def shares(drain: float, grace: float) -> tuple[float, float]:
    """Returns the seconds for turns to finish and for engines to leave, as far as there are any."""
    spare = TOTAL - 2 * WORDS - KILL
    grace = min(grace, spare)
    return min(drain, spare - grace), grace
