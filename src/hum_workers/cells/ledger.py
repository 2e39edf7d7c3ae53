"""Ledger: the processes of a bee's cells, on disk, so that the next bee can end what outlived it.

One file an identity, which the lock on its key keeps for one bee at a time. A process is its pid
and its start time, and both count only in the boot and the PID namespace in which they were
written: nothing is ever found by its name. What can't be written or read is no reason to fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from hum_workers.cells import claims
from hum_workers.cells import folder as cell_folder
from hum_workers.process import cgroup, child, proc, shm
from hum_workers.process.proc import Stat

log = structlog.get_logger()

GONE = 10.0
"""Seconds for killed processes to end; longer is the kernel's doing."""
TICK = 0.2
FILE_BYTES = 4 * 1024 * 1024


class _Page(msgspec.Struct):
    """What the file holds: cell id to (pid, start time) of each member, the tender first."""

    host: str
    cells: dict[str, list[tuple[int, int]]]


class Ledger:
    """What lives of one bee. `note` is cheap while nothing has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._page = _Page(_host(), {})
        self._counts: dict[str, int | None] = {}
        self._warned = False

    def note(self, cell_id: str, tender: int, processes: int | None) -> None:
        """Writes down who lives below a tender, unless there are as many `processes` as before."""
        if processes is not None and self._counts.get(cell_id) == processes:
            return
        self._counts[cell_id] = processes
        stats = (proc.read_stat(pid) for pid in (tender, *proc.walk(tender)))
        members = [stat.identity for stat in stats if stat is not None]
        if self._page.cells.get(cell_id) != members:
            self._page.cells[cell_id] = members
            self._write()

    def forget(self, cell_id: str) -> None:
        """Strikes a cell that is dead."""
        self._counts.pop(cell_id, None)
        if self._page.cells.pop(cell_id, None) is not None:
            self._write()

    def close(self) -> None:
        """Removes the file, if no cell is left in it."""
        if not self._page.cells:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _write(self) -> None:
        draft = self.path.with_name(f".{self.path.name}.draft")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(self._page))
            draft.replace(self.path)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("worker.ledger", file=str(self.path), reason=error.strerror)


def path(state: Path, hive: str, tag: str) -> Path:
    """Returns where the ledger of a bee lies, below the state folder of its user."""
    return state / "hum" / "workers" / hive / f"cells.{tag}.json"


async def end_leftovers(file: Path, cells: Path, tag: str, timeout: float = GONE) -> list[Stat]:
    """Ends what an earlier bee with this identity left: its processes, then its cells' folders.

    Empty cgroups go whoever left them, if their owner is dead.

    Returns who is still alive after `timeout` seconds: the kernel holds it.
    """
    page = _read(file)
    found = _living(page)
    left = await _end(found, timeout)
    for cell_id, members in page.items():
        alive = [str(stat) for stat in left if stat.identity in members]
        if alive:
            reason = "SIGKILL does not end it: look for a driver or a disk that hangs, or reboot"
            log.error("worker.leftover.stays", cell=cell_id, members=alive, reason=reason)
    for group in cgroup.sweep_here():
        log.info("worker.leftover.cgroup", folder=str(group))
    await asyncio.to_thread(_sweep, file, cells, tag)
    return left


def _sweep(file: Path, cells: Path, tag: str) -> None:
    """Removes the folders of the dead cells, and the file."""
    for folder in sorted(cells.glob(f"{tag}-*")):
        if claims.abandoned(folder) is False:
            # A bee with a copy of our key lives by it.
            log.warning("worker.leftover.in_use", folder=str(folder))
            continue
        swept = shm.sweep_recorded(folder)
        shutil.rmtree(folder, ignore_errors=True)
        log.info("worker.leftover.folder", folder=str(folder), swept=swept)
    for folder in cell_folder.sweep(cells):
        log.info("worker.leftover.folder", folder=str(folder))
    with contextlib.suppress(OSError):
        file.unlink()


def _living(page: Mapping[str, list[tuple[int, int]]]) -> dict[tuple[int, int], Stat]:
    """Returns who of them lives, and all that lives below them now."""
    table = proc.scan()
    found: dict[tuple[int, int], Stat] = {}
    for cell_id, members in page.items():
        known = [table[p] for p, start in members if p in table and table[p].start == start]
        below = proc.descendants(table, [stat.pid for stat in known])
        alive = [s for s in (*known, *(table[pid] for pid in below)) if s.alive]
        if alive:
            names = [str(stat) for stat in alive]
            reason = "an earlier bee left it behind; it is ended"
            log.warning("worker.leftover.found", cell=cell_id, members=names, reason=reason)
        found |= {stat.identity: stat for stat in alive if stat.pid != os.getpid()}
    return found


async def _end(found: dict[tuple[int, int], Stat], timeout: float) -> list[Stat]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        table = proc.scan()
        for pid in proc.descendants(table, [pid for pid, _ in found]):
            found.setdefault(table[pid].identity, table[pid])
        now = (proc.read_stat(pid) for pid, _ in found)
        left = [stat for stat in now if stat and stat.alive and stat.identity in found]
        if not left or loop.time() >= deadline:
            return left
        for stat in left:
            proc.send(stat, signal.SIGKILL)
        await child.any_end((stat.pid for stat in left), TICK)


def _read(file: Path) -> dict[str, list[tuple[int, int]]]:
    try:
        # Without O_NONBLOCK the open of a pipe would wait for its writer.
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            page = msgspec.json.decode(stream.read(FILE_BYTES), type=_Page)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning("worker.ledger", file=str(file), reason=f"it can't be read: {error}")
        return {}
    return page.cells if page.host == _host() else {}


def _host() -> str:
    """Returns what tells this boot and this PID namespace from others."""
    return " ".join(claims.here()).strip()
