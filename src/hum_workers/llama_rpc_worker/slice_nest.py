"""The nest of a slice: keeps one rpc-server alive, for no prompts but for whoever leases it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

import structlog

from hum_workers.cells.blame import Again, Diagnosis
from hum_workers.cells.cell import Cell
from hum_workers.cells.emerged import Emerged
from hum_workers.cells.lasting import LastingNest
from hum_workers.cells.plan import NestLimits, NestPlan, Raiser
from hum_workers.cells.room import Room
from hum_workers.errors import StartFailed
from hum_workers.figures.counts import Death, EggView
from hum_workers.llama_rpc_worker.facts import Build
from hum_workers.llama_rpc_worker.slice_desk import Desk
from hum_workers.spec import CellSpec

log = structlog.get_logger()

ACCEPTED = "accepted"
"""Notice of a slice's cell: rpc-server has a client."""
GRACE = 1.0
"""Seconds that rpc-server has to leave: it ends with the first signal, or it is frozen."""
LOOK = 1.0
"""Seconds between two looks at the lease's end."""


class SliceRaiser(Raiser, Protocol):
    """A raiser of rpc-server that knows which llama.cpp it was."""

    build: Build | None

    def spec(self, cell_id: str, away: Mapping[str, str]) -> CellSpec:
        """See `Raiser`."""

    def diagnose(self, lines: Sequence[str]) -> Diagnosis:
        """See `Raiser`."""


class SliceNest(LastingNest):
    """Tells the desk what the process does, and replaces it when the desk says so."""

    def __init__(
        self, plan: NestPlan, raiser: Raiser, *, desk: Desk, room: Room | None = None
    ) -> None:
        super().__init__(plan, raiser, room=room)
        self.limits = _limits(plan)
        self.desk = desk
        desk.recycle = self._recycle
        self._clock: asyncio.TimerHandle | None = None

    @property
    def asked(self) -> bool:
        """A slice is wanted for as long as its bee serves."""
        return not self._over

    @property
    def idle_since(self) -> float | None:
        """None: it never makes room for another egg."""
        return None

    @property
    def engaged(self) -> str:
        """What it does now, in a few words."""
        return str(self.desk)

    def view(self) -> EggView:
        """See `Nest.view`."""
        leased = self.desk.book.lease is not None
        return replace(super().view(), note=str(self.desk), leased=leased)

    def start(self) -> None:
        """See `Nest.start`; a slice is there before anybody asks."""
        if self._clock is None:  # it is started again after a failure
            self._look()
        self._keep()

    def quiet(self) -> None:
        """See `Nest.quiet`; a process that is to be another stays for as long as it is leased."""
        if self._renewing and self.desk.book.lease is not None:
            return
        if self._renewing and self.cell is not None and self.cell.is_ready:
            self.desk.starting()
        super().quiet()

    async def stop(self, grace: float, reason: str) -> None:
        """See `Nest.stop`; whoever leases the slice hears of it first."""
        self.desk.take_leave()
        if self._clock is not None:
            self._clock.cancel()
        await super().stop(grace, reason)

    async def _one_life(self) -> float | None:
        self.desk.starting()
        return await super()._one_life()

    def _replace(self, raiser: Callable[[int], Raiser], *, renew: bool) -> None:
        self.limits = _limits(self._plan)
        super()._replace(raiser, renew=renew)

    async def _raise(self, raiser: Raiser, keep: Callable[[Cell], None]) -> Cell:
        def kept(cell: Cell) -> None:
            keep(cell)
            self.desk.build = cast(SliceRaiser, raiser).build

        return await super()._raise(raiser, kept)

    def _became_ready(self) -> None:
        super()._became_ready()
        assert self.cell is not None
        self.desk.ready(self.cell.spec.uds, self.cell.facts)

    def _start_failed(self, error: Exception) -> Again:
        if not (isinstance(error, StartFailed) and error.kind == Death.STOPPED):
            self.desk.failed(str(error))
        return super()._start_failed(error)

    def _emerged(self, cell: Cell, future: asyncio.Future[Emerged]) -> None:
        super()._emerged(cell, future)
        emerged = future.result()
        if not emerged.asked:
            self.desk.failed(f"rpc-server has ended: {emerged.reason or emerged.death}")

    def _noticed(self, cell: Cell, notice: str) -> None:
        if notice == ACCEPTED and cell.is_ready:
            self.desk.accepted()

    def _recycle(self, reason: str) -> None:
        if not self._go.done():
            self._go.set_result(reason)

    def _look(self) -> None:
        self._clock = self._loop.call_later(LOOK, self._look)
        try:
            self.desk.look()
        except Exception:  # a lease whose end is not seen would keep the slice for ever
            log.exception("worker.slice.look.failed", egg=self.name)


def _limits(plan: NestPlan) -> NestLimits:
    return replace(plan.limits, stop_grace=min(plan.limits.stop_grace, GRACE))
