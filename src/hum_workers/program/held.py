"""Held: a mistake that only a person can mend must not become a loop of restarts.

hum's Orchfile can say `RESTART always` and nothing about exit codes, so it sets HUM_WORKERS_HOLD:
the seconds that a bee which can't start waits before it leaves with code 2. A change of its eggs
ends the wait at once, and the supervisor's restart reads them anew; a signal ends it, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

VARIABLE = "HUM_WORKERS_HOLD"
TICK = 0.5
"""Seconds between two looks at the eggs."""


def hold(eggs: Sequence[Path], env: Mapping[str, str]) -> None:
    """Returns when an egg has changed or the time of HUM_WORKERS_HOLD is over; at once without."""
    seconds = _seconds(env.get(VARIABLE, ""))
    if not seconds:
        return
    before = list(_states(eggs))
    named = ", ".join(map(str, eggs))
    print(  # noqa: T201
        f"{VARIABLE}: leaving in {seconds:g} s, or as soon as {named} changes", file=sys.stderr
    )
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until and list(_states(eggs)) == before:
            time.sleep(min(TICK, seconds))
    except KeyboardInterrupt:
        return


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value < float("inf") else 0.0


def _states(eggs: Sequence[Path]) -> Iterator[tuple[str, int, int]]:
    """Yields what tells a file from a changed one, for each egg and all in a folder of eggs."""
    for egg in eggs:
        for path in (egg, *_inside(egg)):
            try:
                found = path.stat()
            except (OSError, ValueError):
                yield str(path), 0, 0
            else:
                yield str(path), found.st_mtime_ns, found.st_ino


def _inside(egg: Path) -> list[Path]:
    try:
        return sorted(egg.glob("*.toml"))
    except (OSError, ValueError):
        return []
