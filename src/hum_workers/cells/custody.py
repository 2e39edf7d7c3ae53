"""Custody: one bee's NVIDIA devices. No cell gets one whose memory a dead cell still holds.

Before a cell's start what is in use is noted; after its tree is dead the device is looked at until
it is as before, or a deadline has passed: then it is set aside, and looked at again and again until
it can be taken back. Without `nvidia-smi` nothing is noted, and nothing waits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import structlog

from hum_workers.cells.device_book import ADVICE, MIB, Aside, DeviceBook, Finding, Use, judge
from hum_workers.cells.device_look import look
from hum_workers.figures.counts import DeviceView
from hum_workers.process import proc
from hum_workers.process.proc import Stat
from hum_workers.spec import CellSpec

log = structlog.get_logger()

Make = Callable[[str, Mapping[str, str]], CellSpec]
"""Makes the spec of a cell: its id, and the devices it may not have, UUID to why. It may block."""
Vacate = Callable[[str, Collection[int]], Awaitable[tuple[str, ...]]]
"""`Custody.vacate`."""
DEADLINE = 20.0
"""Seconds for the memory of a dead cell to come back; a driver needs less than one."""
EVERY = 30.0
"""Seconds between two looks at a device that is set aside."""
POLL = 0.25
HURRY = 2.0
"""Seconds for the memory when the bee stops: no cell of it waits for the device."""


class Custody:
    """Who has which device. One object a bee; its methods run on the bee's loop."""

    def __init__(
        self, *, deadline: float = DEADLINE, every: float = EVERY, poll: float = POLL
    ) -> None:
        self._deadline = deadline
        self._every = every
        self._poll = poll
        self._book = DeviceBook()
        self._seen: set[str] = set()
        """Devices that were ever set aside."""
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._review: asyncio.Task[None] | None = None

    async def spec(self, make: Make, cell_id: str) -> CellSpec:
        """Returns the spec of the next cell, which has its devices from now on.

        Waits while one of them is being cleared after another cell. One call at a time.

        Raises:
            HumError: what `make` raises.
        """
        while True:
            self._changed.clear()
            spec = await asyncio.to_thread(make, cell_id, self._book.away)
            if not spec.devices:
                return spec
            use = await self._use()
            if self._book.clears(spec.devices):
                await self._changed.wait()
            elif not self._book.away.keys() & set(spec.devices):
                self._book.take(cell_id, spec.devices, use)
                return spec

    async def vacate(self, cell_id: str, left: Collection[int]) -> tuple[str, ...]:
        """Returns what became of each device of a dead cell, after its deadline at the latest.

        `left` are the pids of its processes that SIGKILL did not end.
        """
        had = self._book.died(cell_id)
        loop = asyncio.get_running_loop()
        began, told = loop.time(), dict[str, str]()
        while had:
            use = await self._use()
            spent = loop.time() - began
            over = spent >= (HURRY if self._hurry.is_set() else self._deadline)
            for uuid, before in had.items():
                found = self._judge(uuid, use, before, left)
                if found.back:
                    told[uuid] = f"{uuid}: {found.told} after {spent:.1f} s"
                    self._book.back(uuid, cell_id)
                elif over:
                    told[uuid] = f"{uuid}: set aside: {found.told}"
                    self._set_aside(uuid, cell_id, found, before, left)
            had = {uuid: use for uuid, use in had.items() if uuid not in told}
            self._changed.set()
            if had:
                await asyncio.sleep(self._poll)
        return tuple(told.values())

    async def inherit(self, left: Iterable[Stat]) -> None:
        """Sets aside the devices on which processes of an earlier bee are that nothing ends."""
        stays = {stat.pid for stat in left}
        use = await self._use() if stays else {}
        for uuid in use:
            found = self._judge(uuid, use, None, stays)
            if not found.back:
                self._set_aside(uuid, "of an earlier bee", found, None, stays)

    def hurry(self) -> None:
        """The bee stops: nothing is waited for that only the next cell would need."""
        self._hurry.set()

    def close(self) -> None:
        """Looks at nothing any more."""
        if self._review is not None:
            self._review.cancel()

    def views(self) -> list[DeviceView]:
        """Returns the devices that are, or were, set aside."""
        aside = {one.uuid: one for one in self._book.aside}
        return [
            DeviceView(
                uuid=uuid,
                set_aside=uuid in aside,
                cell=aside[uuid].cell if uuid in aside else "",
                reason=aside[uuid].finding.told if uuid in aside else "",
                since=aside[uuid].since if uuid in aside else 0.0,
            )
            for uuid in sorted(self._seen)
        ]

    async def _use(self) -> dict[str, Use]:
        return await asyncio.to_thread(look, os.environ) or {}

    def _judge(
        self, uuid: str, use: Mapping[str, Use], before: Use | None, left: Collection[int]
    ) -> Finding:
        now = use.get(uuid)
        stats = [proc.read_stat(user.pid) for user in now.users] if now is not None else []
        living = {stat.pid: str(stat) for stat in stats if stat is not None and stat.alive}
        stays = {pid: living[pid] for pid in left if pid in living}
        return judge(now, before, left=stays, living=living, shared=self._book.shared(uuid))

    def _set_aside(
        self, uuid: str, cell: str, found: Finding, before: Use | None, left: Collection[int]
    ) -> None:
        self._book.set_aside(
            Aside(uuid=uuid, cell=cell, finding=found, since=time.time(), before=before, left=left)
        )
        self._seen.add(uuid)
        log.error(
            "worker.device.set_aside",
            device=uuid,
            cell=cell,
            pids=list(found.pids),
            memory_mib=found.memory // MIB,
            reason=found.told,
            advice=ADVICE,
        )
        if self._review is None or self._review.done():
            loop = asyncio.get_running_loop()
            self._review = loop.create_task(self._look_again(), name="devices")

    async def _look_again(self) -> None:
        while self._book.aside:
            await asyncio.sleep(self._every)
            use = await self._use()
            for aside in self._book.aside:
                found = self._judge(aside.uuid, use, aside.before, aside.left)
                if found.back:
                    self._book.back(aside.uuid, aside.cell)
                    seconds = round(time.time() - aside.since, 1)
                    reason = found.told
                    log.info(
                        "worker.device.back", device=aside.uuid, seconds=seconds, reason=reason
                    )
