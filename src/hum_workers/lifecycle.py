"""A process tree, from its start to the death of its last member.

`EngineTree` is the tender's: guard, engine and all that comes from it, confined (`confine.py`), its
output read, its use sampled. It promises that a tree it calls gone has no live member, wherever the
members went meanwhile; `kill` is synchronous and stands in `finally`. `spawn` starts one child in a
session of its own, `end_orphans` is for whoever outlives a tender.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hum_workers.errors import EngineError
from hum_workers.process import guard_link, orphans, proc
from hum_workers.process.child import Child, any_end, become_subreaper, spawn, wake_with_parent
from hum_workers.process.confine import Confinement
from hum_workers.process.guard_link import GuardLink
from hum_workers.process.logfile import LogFile
from hum_workers.process.orphans import end_orphans
from hum_workers.process.output import Output
from hum_workers.process.proc import Stat as Member
from hum_workers.process.vitals import Census, Vitals

__all__ = [
    "Child",
    "EngineTree",
    "Exit",
    "Member",
    "Vitals",
    "become_subreaper",
    "end_orphans",
    "spawn",
    "wake_with_parent",
]

START_TIMEOUT = 10.0  # for the guard to start the engine: 20 ms on an idle machine
LOG_LIMIT = 16 * 1024 * 1024
TICK = 0.05  # between two looks at a tree that is being killed
IDLE_TICK = 0.25  # the same while it ends by itself
LAST_WORDS = 1.0  # for a guard that was told to end without the loop


@dataclass(frozen=True)
class Exit:
    """How a process ended: with a code or by a signal. A code is no verdict (engines exit 0)."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def of(cls, status: int) -> Self:
        """Reads a status that is negative for a signal."""
        return cls(signal=-status) if status < 0 else cls(code=status)

    @classmethod
    def of_guard(cls, status: int) -> Self:
        """Reads the status of a guard: the engine's, 128 + n for a signal.

        A guard that was killed kills. 1 is what one leaves that crashed, and `unshare` over one
        that was killed: it says nothing of the engine.
        """
        if status < 0 or status == 1:
            return cls(signal=signal.SIGKILL)
        return cls(signal=status - 128) if status > 128 else cls(code=status)


class EngineTree:
    """One engine and everything below it. Made by `start`, ended by `kill`, `gone` and `close`."""

    def __init__(
        self, child: Child, control: socket.socket, output: Output, confinement: Confinement
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._link = GuardLink(control, self._heard)
        self._confinement = confinement
        self._census = Census(proc.read_stat)
        self._began = self._loop.time()
        self._frame = [stat for stat in [proc.read_stat(child.pid)] if stat is not None]
        self._killing = False
        self._oom_kills = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._spawned: asyncio.Future[None] = self._loop.create_future()
        self.output = output
        self.engine_pid: int | None = None
        """Host pid of the engine's main process; None when /proc does not show it."""
        self.exited: asyncio.Future[Exit] = self._loop.create_future()
        """How the engine's main process ended; SIGKILL where the guard did not live to tell."""
        self.notes: list[str] = []
        """What the guard could not do as asked."""
        self.counts_ooms = confinement.counts_ooms
        """Whether `oom_kills` is this tree's own count."""
        self.memory_watched = confinement.memory_watched
        """No cgroup limits the memory: whoever samples has to watch it."""
        child.exited.add_done_callback(self._guard_ended)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        confinement: Confinement,
        open_files: int | None = None,
        cpus: str | None = None,
        log_file: Path | None = None,
        log_limit: int = LOG_LIMIT,
        on_line: Callable[[str], None] | None = None,
    ) -> Self:
        """Starts the engine and returns when it runs. Call it in the main thread, in the loop.

        `cpus` is a list as in "0-3,8"; `on_line` gets each line of output, progress bars included.

        Raises:
            EngineError: the engine or its guard can't be started.
        """
        confinement.create()
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        guarded = guard_link.command(
            theirs.fileno(),
            argv,
            open_files=open_files,
            cpus=cpus,
            cgroups=confinement.folders(),
        )
        try:
            child = spawn(
                confinement.wrap(guarded),
                env=env,
                cwd=cwd,
                stdout=write_end,
                stderr=write_end,
                pass_fds=(theirs.fileno(),),
            )
        except OSError as error:
            os.close(read_end)
            ours.close()
            confinement.remove()
            raise EngineError(f"can't start the guard in {cwd}: {error.strerror}") from error
        finally:
            os.close(write_end)
            theirs.close()
        log = LogFile(log_file, log_limit) if log_file else None
        tree = cls(child, ours, Output(read_end, on_line, log), confinement)
        await tree._wait_for_start(argv[0])
        return tree

    async def _wait_for_start(self, name: str) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await self._spawned
        except TimeoutError:
            self.close()
            raise EngineError(f"{name} did not start within {START_TIMEOUT:.0f} s") from None
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Host pids of the live members."""
        return [member.pid for member in self.members()]

    @property
    def peak_rss_bytes(self) -> int:
        """Most memory of the members at any look at them."""
        return self._census.peak_rss_bytes

    def members(self) -> list[Member]:
        """Returns the live members below the guard, wherever they went. Reads all of /proc."""
        table = proc.scan()
        found = proc.descendants(table, [self._child.pid])
        if self._child.exited.done():
            strays = orphans.strays(table)
            orphans.reap(strays)
            found += [stat.pid for stat in strays]
        found += self._confinement.pids()
        return self._count(table[pid] for pid in dict.fromkeys(found) if pid in table)

    def live(self) -> list[Member]:
        """Returns the live members like `members`; its cost grows with the tree, not the host."""
        pids = self._confinement.pids() or proc.walk(self._child.pid)
        stats = (proc.read_stat(pid) for pid in pids)
        return self._count(stat for stat in stats if stat is not None)

    def sample(self) -> Vitals:
        """Returns what the tree uses now."""
        live = self.live()
        return Vitals(
            pid=self.engine_pid or 0,
            rss_bytes=self._census.rss_bytes,
            cpu_ms=self._census.cpu_ms,
            fd_count=sum(proc.fd_count(member.pid) for member in live),
            processes=len(live),
            age_ms=round((self._loop.time() - self._began) * 1000),
            sampled_at_ms=time.time_ns() // 1_000_000,
            peak_rss_bytes=self._census.peak_rss_bytes,
        )

    def oom_kills(self) -> int:
        """Returns how many members the kernel ended for want of memory."""
        return self._oom_kills or self._confinement.oom_kills()

    def terminate(self) -> None:
        """Asks the engine's main process to end (SIGTERM)."""
        self._link.order(b"T")

    def kill(self) -> None:
        """Kills everything, at once and without waiting; idempotent, usable in `finally`."""
        self._killing = True
        self._strike(self.members())

    def _strike(self, members: Iterable[Member]) -> None:
        self._confinement.kill()
        self._link.order(b"K")
        # In a namespace the kernel kills the rest. A guard alone stays: it catches what comes up
        # meanwhile and ends by itself.
        if self._confinement.namespace:
            self._child.kill()
        for member in members:
            proc.send(member, signal.SIGKILL)

    async def gone(self, timeout: float) -> list[Member]:
        """Waits until no member is alive and returns who is left after `timeout` seconds.

        Zombies are dead; the guard counts. After `kill` it kills what comes up; else it only waits.
        """
        began = self._loop.time()
        while left := [*(members := self.members()), *self._living_frame()]:
            spent = self._loop.time() - began
            if spent >= timeout:
                return left
            if self._killing:
                self._strike(members)
                if spent > LAST_WORDS:
                    self._child.kill()
            tick = TICK if self._killing else IDLE_TICK
            await any_end([member.pid for member in left], min(tick, timeout - spent))
        await self._child.exited
        self._release()
        return []

    def close(self) -> None:
        """Kills what is left and gives everything back; blocks a moment if anything is left."""
        if self._link.closed:
            return
        if not self._child.exited.done():
            self.kill()
        self._link.close()
        self._child.wait(LAST_WORDS)
        self._child.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._settle(Exit(signal=signal.SIGKILL))
        self.output.close()
        self._release()

    def _release(self) -> None:
        self._oom_kills = self.oom_kills()
        self._confinement.remove()

    def _count(self, found: Iterable[Member]) -> list[Member]:
        frame = {stat.identity for stat in self._frame}
        return self._census.update(stat for stat in found if stat.identity not in frame)

    def _living_frame(self) -> list[Member]:
        """Returns the guard, and what runs it, as far as alive."""
        now = (proc.read_stat(stat.pid) for stat in self._frame)
        frame = {stat.identity for stat in self._frame}
        return [stat for stat in now if stat and stat.alive and stat.identity in frame]

    def _heard(self, kind: str, value: str) -> None:
        if kind == "spawned":
            self._find_engine(int(value))
            if not self._spawned.done():
                self._spawned.set_result(None)
        elif kind == "failed" and not self._spawned.done():
            self._spawned.set_exception(EngineError(value))
        elif kind == "exit":
            self._settle(Exit.of(int(value)))
        elif kind == "note":
            self.notes.append(value)
            self.memory_watched = self.memory_watched or "cgroup" in value

    def _find_engine(self, inner_pid: int) -> None:
        """Finds guard and engine on the host; the guard knows its own namespace's numbers only."""
        table = proc.scan()
        above = [self._child.pid]
        if self._confinement.namespace:
            above = proc.children_in(table, above)
            self._frame += [table[pid] for pid in above]
        for pid in proc.children_in(table, above):
            if proc.innermost_pid(pid) == inner_pid:
                self.engine_pid = pid

    def _settle(self, end: Exit) -> None:
        if not self.exited.done():
            self.output.pump()  # the reason of the end is in the last lines
            self.exited.set_result(end)

    def _guard_ended(self, ended: asyncio.Future[int]) -> None:
        self._link.hear()
        if not self._spawned.done():
            self.output.pump()
            why = (self.output.lines() or ["it said nothing"])[-1]
            self._spawned.set_exception(
                EngineError(f"the guard ended before the engine ran: {why}")
            )
        # Where its last word was lost its own status tells: it is the engine's.
        self._settle(Exit.of_guard(ended.result()))
        self._sweep()

    def _sweep(self, delay: float = TICK) -> None:
        """Kills what a guard that was killed itself has left; such orphans come to us."""
        left = self.members()
        for member in left:
            proc.send(member, signal.SIGKILL)
        if left:
            self._sweeper = self._loop.call_later(delay, self._sweep, min(1.0, 2 * delay))
