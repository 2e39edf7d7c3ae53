"""What a process tree uses, and the arithmetic behind it: pure, fed with facts from /proc."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from hum_workers.process.proc import PAGE, TICKS, Stat


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """One look at a whole tree.

    `pid` is the engine's main process as the host numbers it (0: not known yet). `rss_bytes` is the
    sum over the members, so that shared pages count once a member. `age_ms` counts from the start,
    `sampled_at_ms` is wall clock since 1970. `cpu_ms` never falls: members that ended stay in it.
    """

    pid: int
    rss_bytes: int
    cpu_ms: int
    fd_count: int
    processes: int
    age_ms: int
    sampled_at_ms: int
    peak_rss_bytes: int

    def to_wire(self) -> dict[str, int]:
        """Returns the dict that a `vitals` frame carries."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Reads what `to_wire` wrote.

        Raises:
            KeyError: a field is missing.
        """
        return cls(**{name: int(wire[name]) for name in cls.__dataclass_fields__})


class Census:
    """Remembers the members of one tree by pid and start time.

    A member once seen is followed until it ends, wherever it goes: out of the session, the cgroup
    or from under the guard.
    """

    def __init__(self, reread: Callable[[int], Stat | None]) -> None:
        self._reread = reread
        self._members: dict[tuple[int, int], Stat] = {}
        self._finished_cpu = 0
        self.peak_rss_bytes = 0

    def update(self, found: Iterable[Stat]) -> list[Stat]:
        """Takes what was found just now and returns the live members, old ones included."""
        current = {stat.identity: stat for stat in found}
        for identity, last in self._members.items():
            if identity in current:
                continue
            now = self._reread(last.pid)
            if now is not None and now.identity == identity:
                current[identity] = now
            else:
                self._finished_cpu += last.cpu
        self._members = current
        self.peak_rss_bytes = max(self.peak_rss_bytes, self.rss_bytes)
        return [stat for stat in current.values() if stat.alive]

    @property
    def cpu_ms(self) -> int:
        """CPU time of all members so far, ended ones as last seen."""
        ticks = self._finished_cpu + sum(stat.cpu for stat in self._members.values())
        return ticks * 1000 // TICKS

    @property
    def rss_bytes(self) -> int:
        """Resident memory of the members as last seen."""
        return sum(stat.rss for stat in self._members.values() if stat.alive) * PAGE
