"""The nest of an egg whose one cell lasts: many turns at once, raised again when it has died."""

from __future__ import annotations

import asyncio

from hum_workers.blame import Again
from hum_workers.cell import Cell
from hum_workers.nest import Lease, Nest
from hum_workers.nest_plan import NestPlan, Raiser


class LastingNest(Nest):
    """Keeps one cell alive and lends its slots. Between a death and the next raise is a pause."""

    def __init__(self, plan: NestPlan, raiser: Raiser) -> None:
        super().__init__(plan)
        self.cell: Cell | None = None
        self._raiser = raiser
        self._used = 0
        """Slots of the present cell that are lent."""
        self._keeper: asyncio.Task[None] | None = None

    @property
    def cells(self) -> list[Cell]:
        """The cell, once there is one."""
        return [] if self.cell is None else [self.cell]

    def start(self) -> None:
        """Begins to raise the cell, unless the egg waits for its first prompt."""
        if not self._plan.on_prompt:
            self._keep()

    def why_waiting(self) -> str:
        """Returns in a few words what a waiting turn waits for."""
        if self.cell is None or not self.cell.is_ready:
            return f"its cell is not ready; {len(self._queue)} prompts wait"
        return f"{self._used} prompts run and {len(self._queue)} wait"

    def _keepers(self) -> list[asyncio.Task[None]]:
        return [] if self._keeper is None else [self._keeper]

    def _keep(self) -> None:
        if self._keeper is None and not self._stopping:
            self._keeper = self._loop.create_task(self._keep_alive(), name=f"nest-{self.name}")

    def _kept(self, cell: Cell) -> None:
        self.cell = cell

    async def _keep_alive(self) -> None:
        """Raises cell after cell until one fails for good."""
        pauses = self._plan.pauses()
        while True:
            try:
                cell = await self._raise(self._raiser, self._kept)
            except Exception as error:
                again = self._start_failed(error)
                if again is Again.NEVER:
                    return
            else:
                again = Again.PAUSED
                self._became_ready()
                emerged = await asyncio.shield(cell.emerged)
                self._used = 0
                if emerged.asked or self._draining:
                    self._refuse_all(self._stops())
                    return
                if emerged.seconds > 300:
                    pauses = self._plan.pauses()
            await self._rest(0 if again is Again.AT_ONCE else next(pauses))

    def _pump(self) -> None:
        """Gives free slots of a ready cell to the turns that wait longest."""
        self._keep()
        cell = self.cell
        while cell is not None and cell.is_ready and self._used < self.limits.slots:
            if not self._lend(cell):
                return
            self._used += 1

    def _give_back(self, lease: Lease) -> None:
        if lease.cell is self.cell and lease.cell.is_ready:
            self._used -= 1
            self._pump()
