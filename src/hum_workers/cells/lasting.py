"""The nest of an egg whose one cell lasts: many turns at once, raised again when it has died.

A cell that nobody uses may go: after `idle_timeout`, or to make room for another egg's (`room`).
The models stay advertised then, and the next turn raises another. Idleness is counted from the end
of the last turn; a turn that runs, waits or is held by a tool keeps the cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from hum_workers.cells import refusals
from hum_workers.cells.blame import Again
from hum_workers.cells.cell import Cell, CellState
from hum_workers.cells.nest import Lease, Nest
from hum_workers.cells.plan import NestPlan, Raiser
from hum_workers.cells.room import Room
from hum_workers.figures.counts import Death

log = structlog.get_logger()

LONG_LIFE = 300.0
"""Seconds after which a death is a first one again: the pauses begin anew."""
LEAST_WAIT = 0.01
"""Seconds between two looks at how long a cell is idle: shorter timers of uvloop spin."""
TOLD = 8
"""Conversations that hear that the cell they used last has gone."""


class LastingNest(Nest):
    """Keeps one cell alive and lends its slots. Between a death and the next raise is a pause."""

    def __init__(self, plan: NestPlan, raiser: Raiser, *, room: Room | None = None) -> None:
        super().__init__(plan)
        self.cell: Cell | None = None
        self._raiser = raiser
        self._room = room or Room(1)
        self._used = 0
        """Slots of the present cell that are lent."""
        self._keeper: asyncio.Task[None] | None = None
        self._pauses = plan.pauses()
        self._renewing = False
        """The present cell is lent no more and goes when its turns have ended."""
        self._go: asyncio.Future[str] = self._loop.create_future()
        """Resolves with the reason for which the present cell is to go; it is lent no more."""
        self._quiet_since = self._loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._served: dict[str, None] = {}
        """Sids that the present cell has served, the latest last."""

    @property
    def cells(self) -> list[Cell]:
        """The cell, once there is one."""
        return [] if self.cell is None else [self.cell]

    @property
    def asked(self) -> bool:
        """Whether a turn waits for the cell."""
        return bool(self._line)

    @property
    def wanted(self) -> bool:
        """Whether a cell is to be raised: for a turn, or as the egg says, for the first time."""
        return self.asked or not (self._plan.on_prompt or self._was_ready)

    @property
    def idle_since(self) -> float | None:
        """When the ready cell was last used; None while it may not go."""
        if self.busy or self._go.done() or self.cell is None or not self.cell.is_ready:
            return None
        return self._quiet_since

    @property
    def engaged(self) -> str:
        """What the cell does now, in a few words."""
        if self.cell is None or not self.cell.is_ready:
            return "not ready"
        held = f", {self.held} are held by tools" if self.held else ""
        return f"{self._used} prompts run and {len(self._line)} wait{held}"

    def start(self) -> None:
        """Begins to raise the cell, unless the egg waits for its first prompt."""
        if not self._plan.on_prompt:
            self._keep()

    def why_waiting(self) -> str:
        """Returns in a few words what a waiting turn waits for."""
        if self._room.waits(self):
            return f"{len(self._line)} prompts wait; {self._room.why(self)}"
        if self.cell is None or not self.cell.is_ready:
            return f"its cell is not ready; {len(self._line)} prompts wait"
        return self.engaged

    def quiet(self) -> None:
        """Notes the end of a turn: idleness counts from the last one."""
        super().quiet()
        self._quiet_since = self._loop.time()
        cell = self.cell
        if self._renewing and not self._leases and cell is not None and cell.is_ready:
            if not self._go.done():
                self._go.set_result("its egg has changed")
        elif self.idle_since is not None:
            self._room.stir()
            if self._idle_timer is None and not self._go.done():
                self._look_at_idleness()

    def make_room(self) -> Cell:
        """Ends the idle cell for another egg's, and returns it."""
        why = "it made room for another egg"
        return self._evict("lru", "worker.cell.evict.lru", "cell-evicted", why)

    def hears(self, kind: str, cell: Cell) -> None:
        """Tells the turns that wait for room what happens to the cell that makes it."""
        self._tell(kind, cell)

    def drain(self) -> None:
        """See `Nest.drain`; turns that wait for another egg's cell to go give up at once."""
        super().drain()
        self._room.give_up(self)

    async def stop(self, grace: float, reason: str) -> None:
        """See `Nest.stop`."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await super().stop(grace, reason)
        self._room.give_up(self)
        self._room.leave(self)

    def _keepers(self) -> list[asyncio.Task[None]]:
        return [] if self._keeper is None else [self._keeper]

    def _keep(self) -> None:
        free = self._keeper is None or self._keeper.done()
        if free and self._draining:
            self._line.refuse(refusals.stops())  # no cell will come for them
        elif free and not self._over:
            place = self._room.enter(self)
            self._keeper = self._loop.create_task(self._keep_alive(place), name=f"nest-{self.name}")

    @property
    def _over(self) -> bool:
        return self._stopping or self._draining or self.failure is not None

    def _kept(self, cell: Cell) -> None:
        self.cell = cell
        self._go = self._loop.create_future()
        self._served.clear()

    async def _keep_alive(self, place: asyncio.Future[bool]) -> None:
        """Raises cell after cell, until one fails for good or no turn needs another."""
        while await place:
            try:
                pause = await self._one_life()
            finally:
                self._leave_room()
            if self._over or (pause is None and not self.asked and not self._renewing):
                break
            if pause is not None:
                await self._rest(pause)
            if self._over:
                break
            place = self._room.enter(self)
        if self._draining:
            self._line.refuse(refusals.stops())

    def _leave_room(self) -> None:
        if self.cell is None or self.cell.emerged.done():
            self._room.leave(self)
        else:
            self.cell.emerged.add_done_callback(lambda _: self._room.leave(self))

    def _replace(self, raiser: Callable[[int], Raiser], *, renew: bool) -> None:
        self._raiser = raiser(0)
        self._pauses = self._plan.pauses()
        if renew and self._keeper is not None and not self._keeper.done():
            self._renewing = True
            if self.cell is not None and self.cell.state is CellState.HATCHING:
                self.cell.kill()
        self.quiet()

    async def _one_life(self) -> float | None:
        """Returns the pause that is due before the next raise; None after an end as asked."""
        self._renewing = False
        try:
            cell = await self._raise(self._raiser, self._kept)
        except Exception as error:
            again = self._start_failed(error)
            if again is Again.NEVER:
                return None
            return 0 if again is Again.AT_ONCE else next(self._pauses)
        self._became_ready()
        self.quiet()
        ends: set[asyncio.Future[Any]] = {cell.emerged, self._go}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._go.done() and not cell.emerged.done():
            await cell.silence(self.limits.stop_grace, self._go.result())
        emerged = cell.emerged.result()
        self._used = 0
        if emerged.asked:
            return None
        if emerged.death is Death.CANCEL:
            return 0
        if emerged.seconds > LONG_LIFE:
            self._pauses = self._plan.pauses()
        return next(self._pauses)

    def _pump(self) -> None:
        """Gives free slots of a ready cell to the turns that wait longest."""
        self._keep()
        cell = self.cell
        while cell is not None and cell.is_ready and self._used < self.limits.slots:
            if self._go.done() or self._renewing or not self._lend(cell):
                return
            self._used += 1

    def _give_back(self, lease: Lease) -> None:
        if lease.cell is not self.cell or not lease.cell.is_ready:
            return
        self._used -= 1
        if lease.sid:
            self._served.pop(lease.sid, None)
            self._served[lease.sid] = None
            if len(self._served) > TOLD:
                del self._served[next(iter(self._served))]
        self._pump()
        self.quiet()

    def _left(self) -> None:
        super()._left()
        if not self.asked:
            self._room.stir()

    def _look_at_idleness(self) -> None:
        """Ends a cell that has been idle for long enough, or looks again when it might be."""
        self._idle_timer = None
        since, timeout = self.idle_since, self.limits.idle_timeout
        if since is None or timeout is None:
            return
        left = since + timeout - self._loop.time()
        if left <= 0:
            why = f"it was idle for {timeout:g} s"
            self._evict("idle", "worker.cell.idle.kill", "cell-idle", why)
            return
        self._idle_timer = self._loop.call_later(max(left, LEAST_WAIT), self._look_at_idleness)

    def _evict(self, reason: str, event: str, pulse: str, why: str) -> Cell:
        cell = self.cell
        assert cell is not None
        self._go.set_result(why)
        self.figures.evicted(reason)
        log.info(event, egg=self.name, cell=cell.cell_id, pid=cell.mark, reason=why)
        for sid in self._served:
            self._plan.pulse(sid, pulse, cell.cell_id, cell.mark or 0)
        return cell
