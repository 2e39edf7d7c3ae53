"""What a running bee writes down of itself for `status`, in the state folder of its user.

One JSON file a bee, beside the logs of its engines. It is written beside and renamed, so a reader
never sees half of it, and removed when the bee leaves; after a SIGKILL it stays. So a reader looks
whether pid and start time still name a process.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from hum_workers.figures.counts import BeeView, CellView, DeviceView, EggView
from hum_workers.process import proc
from hum_workers.program.plain_files import read_plain

log = structlog.get_logger()

EVERY = 2.0
"""Seconds between two writes."""
LARGEST = 4 * 1024 * 1024
"""Bytes of a file at most; a bee with many cells writes some thousand."""


class LastDeath(msgspec.Struct, frozen=True, kw_only=True):
    """The latest end of a cell that nobody asked for; `at` in seconds since 1970."""

    cell: str
    kind: str
    reason: str
    at: float
    by: str = ""
    advice: str = ""
    age_seconds: float = 0.0
    peak_rss_bytes: int = 0
    turns_lost: int = 0


class CellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One cell, as `figures.CellView`."""

    cell: str
    state: str
    pid: int
    engine_pid: int
    age_seconds: float
    rss_bytes: int
    cpu_ms: int
    tokens_per_second: float
    stage: str = ""


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A device that is set aside; `since` in seconds since 1970."""

    uuid: str
    cell: str
    reason: str
    since: float


class EggStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One egg with the cells it has."""

    egg: str
    model: str
    advertised: bool
    failure: str | None
    running: int
    waiting: int
    restarts: int
    last_death: LastDeath | None
    cells: list[CellStatus]
    note: str = ""


class BeeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One bee. `start` is its start time in clock ticks since the boot, as /proc has it."""

    hive: str
    hid: str
    name: str | None
    pid: int
    start: int
    started_at: float
    written_at: float
    connected: bool
    metrics: str | None
    eggs: list[EggStatus]
    devices: list[DeviceStatus] = []
    """Those that no cell gets, as a dead cell's memory is not back."""

    @property
    def alive(self) -> bool:
        """Whether the process that wrote this still runs."""
        stat = proc.read_stat(self.pid)
        return stat is not None and stat.alive and stat.start == self.start


def folder(state: Path, hive: str) -> Path:
    """Returns where the bees of a hive write down what they are."""
    return state / "hum" / "workers" / hive


def read_all(state: Path, hive: str) -> list[BeeStatus]:
    """Returns what all bees of a hive wrote, the dead ones included, by name; never raises."""
    found = []
    for path in sorted(folder(state, hive).glob("bee.*.json")):
        try:
            found.append(msgspec.json.decode(read_plain(path, LARGEST), type=BeeStatus))
        except (OSError, ValueError, RecursionError):
            # Just removed, or of another version: no bee that this program can show.
            continue
    return sorted(found, key=lambda bee: (bee.name or "", bee.hid))


class StatusFile:
    """Keeps one bee's file until `remove`."""

    def __init__(
        self,
        state: Path,
        *,
        tag: str,
        name: str | None,
        view: Callable[[], BeeView],
        metrics: str | None = None,
    ) -> None:
        self._state = state
        self._tag = tag
        self._name = name
        self._view = view
        self._metrics = metrics
        self._pid = os.getpid()
        stat = proc.read_stat(self._pid)
        self._start = stat.start if stat is not None else 0
        self._started_at = time.time()
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._removed = False
        self._warned = False

    async def keep(self) -> None:
        """Writes every two seconds, in a thread: a home folder may be on a slow network."""
        while True:
            await asyncio.to_thread(self._write, self._status())
            await asyncio.sleep(EVERY)

    def remove(self) -> None:
        """Removes the file; a write that is under way is waited for, none follows."""
        with self._lock:
            self._removed = True
            if self._path is not None:
                self._path.unlink(missing_ok=True)

    def _write(self, status: BeeStatus) -> None:
        with self._lock:
            if self._removed:
                return
            home = folder(self._state, status.hive)
            path = home / f"bee.{self._tag}.json"
            draft = home / f".bee.{self._tag}.draft"
            try:
                home.mkdir(mode=0o700, parents=True, exist_ok=True)
                draft.write_bytes(msgspec.json.encode(status))
                draft.replace(path)
                self._path = path
            except OSError as error:
                if not self._warned:
                    self._warned = True
                    log.warning("worker.status.unwritten", file=str(path), error=error.strerror)

    def _status(self) -> BeeStatus:
        view = self._view()
        return BeeStatus(
            hive=view.hive,
            hid=view.hid,
            name=self._name,
            pid=self._pid,
            start=self._start,
            started_at=self._started_at,
            written_at=time.time(),
            connected=view.connected,
            metrics=self._metrics,
            eggs=[_egg(egg) for egg in view.eggs],
            devices=[_device(device) for device in view.devices if device.set_aside],
        )


def _egg(view: EggView) -> EggStatus:
    last = view.figures.last_death
    return EggStatus(
        egg=view.egg,
        model=view.model,
        advertised=view.advertised,
        failure=view.failure,
        note=view.note,
        running=view.running,
        waiting=view.waiting,
        restarts=view.figures.restarts,
        last_death=None
        if last is None
        else LastDeath(
            cell=last.cell,
            kind=last.death.value,
            reason=last.reason,
            at=last.at,
            by=last.by,
            advice=last.advice,
            age_seconds=round(last.age_seconds, 1),
            peak_rss_bytes=last.peak_rss_bytes,
            turns_lost=last.turns_lost,
        ),
        cells=[_cell(cell) for cell in view.cells],
    )


def _device(view: DeviceView) -> DeviceStatus:
    return DeviceStatus(uuid=view.uuid, cell=view.cell, reason=view.reason, since=view.since)


def _cell(view: CellView) -> CellStatus:
    return CellStatus(
        cell=view.cell,
        state=view.state,
        pid=view.pid,
        engine_pid=view.engine_pid,
        age_seconds=round(view.age_seconds, 1),
        rss_bytes=view.rss_bytes,
        cpu_ms=view.cpu_ms,
        tokens_per_second=round(view.tokens_per_second, 1),
        stage=view.stage,
    )
