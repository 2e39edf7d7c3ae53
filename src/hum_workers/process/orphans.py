"""Processes that came to us because their parents died: found, killed, reaped.

Needs `become_subreaper`. An orphan is told from a child of our own by its session, which is another
than ours, and because nobody here waits for it (`child.living`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping

from hum_workers.process import cgroup, child, proc
from hum_workers.process.proc import Stat

TICK = 0.05


def strays(table: Mapping[int, Stat]) -> list[Stat]:
    """Returns our orphans and everything below them, zombies included."""
    me, mine = os.getpid(), child.living()
    session = os.getsid(0)
    adopted = [
        stat.pid
        for stat in table.values()
        if stat.parent == me and stat.pid not in mine and stat.session != session
    ]
    return [table[pid] for pid in (*adopted, *proc.descendants(table, adopted, without=mine))]


def kill_below() -> None:
    """Kills everything below this process: at its end nothing there is of use to anybody."""
    table = proc.scan()
    for pid in proc.descendants(table, [os.getpid()]):
        proc.send(table[pid], signal.SIGKILL)


def reap(found: list[Stat]) -> None:
    """Collects the zombies among our own orphans."""
    for stat in found:
        if not stat.alive and stat.parent == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stat.pid, os.WNOHANG)


async def end_orphans(session: int, timeout: float = 5.0) -> list[Stat]:
    """Kills what a dead child left behind, as orphans of ours or in the session it led.

    `session` is the pid it had; cgroups of the dead are removed as well. Returns who is still
    alive after `timeout` seconds: the kernel holds it.

    Raises:
        ValueError: `session` is 0 or 1: whatever was started outside of our PID namespace has 0.
    """
    if session <= 1:
        raise ValueError(f"session {session} was never a child's")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        table = proc.scan()
        found = strays(table)
        reap(found)
        known = {stat.pid for stat in found}
        if session not in table:
            found += [s for s in table.values() if s.session == session and s.pid not in known]
        left = [stat for stat in found if stat.alive]
        if not left or loop.time() >= deadline:
            cgroup.sweep_here()
            return left
        for stat in left:
            proc.send(stat, signal.SIGKILL)
        await child.any_end((stat.pid for stat in left), TICK)
