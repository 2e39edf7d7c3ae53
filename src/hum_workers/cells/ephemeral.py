"""The nest of an egg whose cells live for one turn: a fresh engine each, which ends with it.

An egg may always have one cell; more only while `Spares` has some left, which all eggs of the bee
share. A turn for which there is none waits. With `raise = "on-start"` one cell beyond those in use
is raised ahead, as far as the number allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from hum_workers.cells.blame import Again
from hum_workers.cells.cell import Cell, CellState
from hum_workers.cells.nest import Lease, Nest
from hum_workers.cells.plan import NestPlan, Raiser


class Spares:
    """Cells that a bee may have beyond one for each egg: for whichever egg wants them first."""

    def __init__(self, count: int) -> None:
        self.free = count
        self.count = count
        self._listeners: list[Callable[[], None]] = []

    def resize(self, count: int) -> None:
        """Has so many from now on; those that are out above that come back in time."""
        self.free += count - self.count
        self.count = count
        self._tell()

    def listen(self, on_free: Callable[[], None]) -> None:
        """Calls `on_free` whenever one has come back."""
        self._listeners.append(on_free)

    def take(self) -> bool:
        """Returns whether there was one; it is then the caller's."""
        if self.free <= 0:
            return False
        self.free -= 1
        return True

    def give_back(self) -> None:
        """Takes one back."""
        self.free += 1
        self._tell()

    def _tell(self) -> None:
        for on_free in self._listeners:
            on_free()


class _Lane:
    """One of the cells that may live side by side; its number stands for folder and log."""

    def __init__(self, number: int, raiser: Raiser, pauses: Iterator[float]) -> None:
        self.number = number
        self.raiser = raiser
        self.pauses = pauses
        self.cell: Cell | None = None
        self.task: asyncio.Task[None] | None = None
        """Set from the raise of a cell to its burial and the pause after it."""
        self.lent = False
        self.spent = False
        """Its cell is of an egg that has changed."""
        self.over = asyncio.Event()
        """The turn of its cell has ended."""

    def keep(self, cell: Cell) -> None:
        """Takes a new cell in; an ending that comes late belongs to the one before."""
        self.cell = cell
        self.lent = self.spent = False
        self.over.clear()

    def replace(self) -> None:
        """Ends its cell, which no turn has; another one follows."""
        self.spent = True
        self.over.set()
        if self.cell is not None and self.cell.state is CellState.HATCHING:
            self.cell.kill()

    @property
    def offers(self) -> bool:
        """Whether its cell can be lent now."""
        return not (self.lent or self.spent) and self.cell is not None and self.cell.is_ready


class EphemeralNest(Nest):
    """Raises a cell for each turn and ends it after the turn. `raiser` makes that of a lane."""

    keeps_slot = True

    def __init__(self, plan: NestPlan, raiser: Callable[[int], Raiser], *, spares: Spares) -> None:
        super().__init__(plan)
        self._raiser = raiser
        self._spares = spares
        self._lanes: list[_Lane] = []
        spares.listen(self._pump)

    @property
    def cells(self) -> list[Cell]:
        """The cells that live or are not buried yet."""
        return [lane.cell for lane in self._lanes if lane.cell is not None]

    def start(self) -> None:
        """Begins to raise the first cell, unless the egg waits for its first prompt."""
        self._pump()

    def why_waiting(self) -> str:
        """Returns in a few words what a waiting turn waits for."""
        cells = sum(lane.task is not None for lane in self._lanes)
        return (
            f"each prompt has a cell of its own; of {cells} none is ready and free, and "
            f"{len(self._line)} prompts wait ([bee] max_procs)"
        )

    def _replace(self, raiser: Callable[[int], Raiser], *, renew: bool) -> None:
        self._raiser = raiser
        for lane in self._lanes:
            lane.raiser = raiser(lane.number)
            if renew and lane.cell is not None and not lane.lent:
                lane.replace()
        self._pump()

    def _keepers(self) -> list[asyncio.Task[None]]:
        return [lane.task for lane in self._lanes if lane.task is not None]

    def _pump(self) -> None:
        for lane in self._lanes:
            if lane.offers and self._lend_lane(lane):
                continue
        coming = sum(lane.task is not None and not lane.lent for lane in self._lanes)
        wanted = len(self._line) + (not self._plan.on_prompt)
        if not self._was_ready:
            # Before a cell has been ready it is not known whether any ever will be.
            wanted = min(wanted, 1)
        while coming < wanted and not self._stopping and self.failure is None:
            if (free := self._free_lane()) is None:
                return
            name = f"nest-{self.name}-{free.number}"
            free.task = self._loop.create_task(self._live(free), name=name)
            coming += 1

    def _lend_lane(self, lane: _Lane) -> bool:
        assert lane.cell is not None
        lane.lent = self._lend(lane.cell)
        return lane.lent

    def _free_lane(self) -> _Lane | None:
        """Returns a lane in which a cell may be raised now; beyond the first, of the spares."""
        if any(lane.task is not None for lane in self._lanes) and not self._spares.take():
            return None
        free = next((lane for lane in self._lanes if lane.task is None), None)
        if free is None:
            number = len(self._lanes)
            free = _Lane(number, self._raiser(number), self._plan.pauses())
            self._lanes.append(free)
        return free

    async def _live(self, lane: _Lane) -> None:
        """One cell from its raise to its burial."""
        try:
            pause = await self._raise_and_end(lane)
            if pause is not None:
                await self._rest(pause)
        finally:
            lane.task, lane.lent = None, False
        if any(other.task is not None for other in self._lanes):
            self._spares.give_back()
        self._pump()

    async def _raise_and_end(self, lane: _Lane) -> float | None:
        """Returns the pause that is due before the next raise, if one is."""
        try:
            cell = await self._raise(lane.raiser, lane.keep)
        except Exception as error:
            again = self._start_failed(error)
            if again is Again.PAUSED:
                return next(lane.pauses)
            return 0 if again is Again.AT_ONCE else None
        self._became_ready()
        over = asyncio.ensure_future(lane.over.wait())
        try:
            ends: set[asyncio.Future[Any]] = {cell.emerged, over}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        if not cell.emerged.done():
            await cell.silence(self.limits.stop_grace, "its turn has ended")
        emerged = cell.emerged.result()
        if emerged.asked or emerged.seconds > 300:
            lane.pauses = self._plan.pauses()
        return None if emerged.asked else next(lane.pauses)

    def _give_back(self, lease: Lease) -> None:
        for lane in self._lanes:
            if lane.cell is lease.cell:
                lane.over.set()
