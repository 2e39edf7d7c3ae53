"""The arithmetic of a tree's vitals."""

from __future__ import annotations

import pytest

from hum_workers.process.proc import PAGE, TICKS, Stat
from hum_workers.process.vitals import Census, Vitals

VITALS = Vitals(
    pid=7,
    rss_bytes=1,
    cpu_ms=2,
    fd_count=3,
    processes=4,
    age_ms=5,
    sampled_at_ms=6,
    peak_rss_bytes=8,
)


def stat(pid: int, *, cpu: int = 0, rss: int = 0, start: int = 1, state: str = "S") -> Stat:
    return Stat(pid, "x", state, 1, pid, pid, cpu, start, rss)


class Host:
    """The processes of a made-up host."""

    def __init__(self, *stats: Stat) -> None:
        self.stats = {s.pid: s for s in stats}

    def read(self, pid: int) -> Stat | None:
        return self.stats.get(pid)


def test_vitals_survive_the_wire() -> None:
    assert Vitals.from_wire(VITALS.to_wire()) == VITALS


def test_a_missing_field_is_an_error() -> None:
    with pytest.raises(KeyError, match="rss_bytes"):
        Vitals.from_wire({"pid": 1})


def test_cpu_time_of_members_that_ended_stays() -> None:
    census = Census(Host().read)
    census.update([stat(1, cpu=TICKS), stat(2, cpu=2 * TICKS)])
    census.update([stat(1, cpu=3 * TICKS)])
    assert census.cpu_ms == 5000
    census.update([])
    assert census.cpu_ms == 5000


def test_a_pid_used_again_is_another_member() -> None:
    host = Host(stat(1, cpu=1, start=2))
    census = Census(host.read)
    census.update([stat(1, cpu=TICKS, start=1)])
    census.update([stat(1, cpu=TICKS, start=2)])
    assert census.cpu_ms == 2000


def test_a_member_that_slipped_away_is_followed_as_long_as_it_lives() -> None:
    host = Host(stat(2, cpu=9))
    census = Census(host.read)
    census.update([stat(1), stat(2)])
    assert [s.pid for s in census.update([stat(1)])] == [1, 2]
    host.stats.clear()
    assert [s.pid for s in census.update([stat(1)])] == [1]


def test_zombies_count_for_cpu_but_not_as_members_or_memory() -> None:
    census = Census(Host().read)
    assert census.update([stat(1, cpu=TICKS, rss=5, state="Z")]) == []
    assert census.cpu_ms == 1000
    assert census.rss_bytes == 0


def test_the_peak_is_that_of_the_sum() -> None:
    census = Census(Host().read)
    census.update([stat(1, rss=10), stat(2, rss=5)])
    census.update([stat(1, rss=12)])
    assert census.rss_bytes == 12 * PAGE
    assert census.peak_rss_bytes == 15 * PAGE
