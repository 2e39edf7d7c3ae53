"""Which cell makes room for another one (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has a place. `idle_since` is None while a turn runs, waits or is held there, and while
    its cell is not ready: such a one is never evicted."""

    name: str
    idle_since: float | None


def victim(holders: Iterable[Holder]) -> str | None:
    """Returns the one that has been idle longest; None while none is."""
    idle = [(h.idle_since, h.name) for h in holders if h.idle_since is not None]
    return min(idle)[1] if idle else None
