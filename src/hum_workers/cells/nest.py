"""Nest: the cells of one egg. It raises them and lends them to turns.

Holds what is the same for every kind of nest: the queue of turns that wait for a cell, the word
whether the egg's models may be advertised, one cell's start. Which cells live, and who gets which,
is said by the kinds: `cells.lasting` and `cells.ephemeral`. Whether a failed start is tried again
is said by its class (`blame`); where not, the egg withdraws its models, and the bee stays up and
says why.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import structlog

from hum_workers.cells import blame, cell_log, refusals
from hum_workers.cells.blame import Again
from hum_workers.cells.cell import Cell
from hum_workers.cells.emerged import Emerged
from hum_workers.cells.lease import Hear, Lease, Line
from hum_workers.cells.plan import NestPlan, Raiser
from hum_workers.errors import ErrorCode, HumError, NoDevice, NotYet, StartFailed, TurnError
from hum_workers.figures.counts import Death, EggFigures, EggView
from hum_workers.tools.parking import Parking

__all__ = ["Hear", "Lease", "Nest"]

log = structlog.get_logger()


class Nest(ABC):
    """The cells of one egg, as turns and the bee see them."""

    keeps_slot = False
    """A turn keeps its slot while a forager's tool runs: its cell is for this turn alone."""

    def __init__(self, plan: NestPlan) -> None:
        self.name = plan.name
        self.models = list(plan.models)
        self.model = next(iter(self.models), "")
        self.limits = plan.limits
        self.media = plan.media
        self.tools = plan.tools
        self.default_max_tokens = plan.default_max_tokens
        self.figures = EggFigures()
        self.failure: str | None = None
        """Why the models are withdrawn for good; None while they are not."""
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self.parking = Parking(plan.parking, self._loop.time)
        self.held = 0
        """Turns that wait for a forager's tool and hold no slot."""
        self._line = Line(self._left)
        self._unused: asyncio.Future[None] | None = None
        self._leases: set[Lease] = set()
        self._raised = 0
        self._failures = 0
        """Starts in a row that failed."""
        self._was_ready = False
        self._draining = False
        self._stopping = False

    @property
    @abstractmethod
    def cells(self) -> list[Cell]:
        """The cells that live or are not buried yet."""

    @abstractmethod
    def start(self) -> None:
        """Begins to raise what is raised without a prompt."""

    @abstractmethod
    def why_waiting(self) -> str:
        """Returns in a few words what a waiting turn waits for."""

    @abstractmethod
    def _pump(self) -> None:
        """Lends cells to the turns that wait longest and sees that more are raised where due."""

    @abstractmethod
    def _give_back(self, lease: Lease) -> None:
        """Takes back what a turn had."""

    def _left(self) -> None:
        """Hears that a turn has given up its wait."""
        self.quiet()

    @abstractmethod
    def _keepers(self) -> list[asyncio.Task[None]]:
        """Returns the tasks that raise cells; cancelled when the nest stops."""

    @property
    def advertised(self) -> bool:
        """Whether humd may send prompts for these models now."""
        if self._stopping or self.failure is not None:
            return False
        return self._plan.on_prompt or self._was_ready

    @property
    def raises(self) -> bool:
        """Whether another cell comes after one that died."""
        return not (self._stopping or self._draining) and self.failure is None

    @property
    def waiting(self) -> int:
        """Turns that wait for a slot."""
        return len(self._line)

    @property
    def busy(self) -> bool:
        """Whether a turn runs, waits or is held by a tool."""
        return bool(self._leases or self._line or self.held or self.figures.open_turns)

    def view(self) -> EggView:
        """Returns what the egg is now."""
        return EggView(
            egg=self.name,
            model=self.model,
            advertised=self.advertised,
            failure=self.failure,
            running=len(self._leases),
            waiting=max(0, self.figures.open_turns - len(self._leases) - self.held),
            held=self.held,
            cells=[view for cell in self.cells if (view := cell.view())],
            figures=self.figures,
        )

    def full(self) -> TurnError | None:
        """Returns why a turn that was just made may not wait, None if it may.

        Those that wait in the lines of their sids count, too.
        """
        waiting = self.figures.open_turns - self.limits.slots - self.held
        return (
            refusals.no_room(self.model, waiting - 1, self.why_waiting())
            if waiting > self.limits.max_waiting
            else None
        )

    def lease(
        self,
        hear: Hear = lambda kind, cell_id, pid: None,
        *,
        sid: str = "",
        ahead: bool = False,
    ) -> asyncio.Future[Lease]:
        """Returns a future of a slot, first come, first served; cancel it to stop waiting.

        It fails with a TurnError when the cell can't be raised or the bee stops. `hear` is told
        what happens to the cell until the slot is given back. `ahead`: for a turn that had a slot
        before its tools ran; it goes before those that never had one.
        """
        if (refusal := self._refusal(ahead=ahead)) is not None:
            refused: asyncio.Future[Lease] = self._loop.create_future()
            refused.set_exception(refusal)
            return refused
        future = self._line.join(hear, sid, ahead=ahead)
        self._pump()
        return future

    def quiet(self) -> None:
        """Hears that a turn of this egg has ended, or that humd has read its ending."""
        if self._unused is not None and not self.busy and not self._unused.done():
            self._unused.set_result(None)

    async def unused(self, timeout: float) -> bool:
        """Returns whether no turn runs, waits or is held any more, within `timeout` seconds."""
        if self.busy:
            self._unused = self._loop.create_future()
            await asyncio.wait({self._unused}, timeout=timeout)
        return not self.busy

    def adopt(self, plan: NestPlan, raiser: Callable[[int], Raiser], *, renew: bool) -> None:
        """Lives by another plan from now on; what was given up is tried again.

        Cells to come are from `raiser`. `renew`: those that live are replaced after their turns.
        """
        self._plan = plan
        self.models = list(plan.models)
        self.model = next(iter(self.models), "")
        self.limits, self.media, self.tools = plan.limits, plan.media, plan.tools
        self.default_max_tokens = plan.default_max_tokens
        self.parking.limits = plan.parking
        failed, self.failure = self.failure, None
        self._replace(raiser, renew=renew)
        if failed is not None:
            self._was_ready, self._failures = False, 0
            self.start()
        plan.on_change()

    @abstractmethod
    def _replace(self, raiser: Callable[[int], Raiser], *, renew: bool) -> None:
        """Takes another raiser; the cells of the old one go when their turns have ended."""

    def drain(self) -> None:
        """Raises no cell again after a death: turns that run go on, those that wait give up then.

        A stop may reach the engine as well (systemd's default kill mode); it is not to come back.
        """
        self._draining = True

    async def stop(self, grace: float, reason: str) -> None:
        """Ends the cells and the raising of more; turns that wait get `shutting_down`."""
        self._stopping = True
        self._line.refuse(TurnError(ErrorCode.SHUTTING_DOWN, f"the bee stops: {reason}"))
        if keepers := self._keepers():
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)
        await asyncio.gather(*(cell.silence(grace, reason) for cell in self.cells))

    def kill(self) -> None:
        """Kills the cells at once; synchronous."""
        self._stopping = True
        for cell in self.cells:
            cell.kill()

    async def buried(self, timeout: float) -> bool:
        """Returns whether all cells are dead within `timeout` seconds."""
        emerged = {cell.emerged for cell in self.cells if not cell.emerged.done()}
        if not emerged:
            return True
        _, alive = await asyncio.wait(emerged, timeout=timeout)
        return not alive

    async def _raise(self, raiser: Raiser, keep: Callable[[Cell], None]) -> Cell:
        """Returns a new cell that is ready; cells on a host are started one by one.

        `keep` gets the cell before it starts, so that it is known to who stops or kills.
        """
        self._raised += 1
        cell_id = f"{self.name}-{self._raised}"
        async with self._plan.start_slot:
            spec = await self._plan.custody.spec(raiser.spec, cell_id)
            cell = Cell(
                spec,
                diagnose=raiser.diagnose,
                on_cancelled=self.figures.cancelled,
                on_tree=self._note,
                on_notice=self._noticed,
                vacate=self._plan.custody.vacate,
            )
            keep(cell)
            # A callback, not a task: the turns that were fed hear it before their error.
            cell.fallen.add_done_callback(partial(self._emerged, cell))
            await cell.hatch()
            self._tell("cell-spawned", cell)
            try:
                await cell.ready()
            except StartFailed:
                await cell.silence(0, "its start failed")
                raise
            self.figures.start_seconds.observe(float(cell.facts.get("seconds", 0)))
            self._tell("cell-ready", cell)
            return cell

    def _start_failed(self, error: Exception) -> Again:
        """Notes a start that failed; returns whether another one is worth it (`blame`)."""
        if isinstance(error, StartFailed) and error.kind == Death.STOPPED:
            return Again.AT_ONCE  # by ourselves: there is another plan
        if isinstance(error, NotYet):
            waits = "worker.cell.no_device" if isinstance(error, NoDevice) else "worker.cell.waits"
            log.error(waits, egg=self.name, reason=str(error))
            return Again.PAUSED
        if not isinstance(error, HumError):
            log.error("worker.cell.raise.failed", egg=self.name, exc_info=error)
        self._failures += 1
        kind = error.kind if isinstance(error, StartFailed) else ""
        death = Death(kind) if kind else Death.START_FAILED
        again = blame.again(death, was_ready=self._was_ready, failures=self._failures)
        if again is Again.NEVER:
            advice = error.advice if isinstance(error, StartFailed) else ""
            self._give_up(f"{error}; {advice}" if advice else str(error))
        else:
            cell_log.start_failed(self.name, error, again.value)
        return again

    async def _rest(self, pause: float) -> None:
        """Waits before another raise, after a death that nobody asked for."""
        self.figures.restarts += 1
        log.warning("worker.cell.restart", egg=self.name, seconds=round(pause, 1))
        await asyncio.sleep(pause)

    def _lend(self, cell: Cell) -> bool:
        """Gives a cell to the turn that waits longest; False when none waits any more."""
        waiter = self._line.take()
        if waiter is None:
            return False
        lease = Lease(cell, waiter, self._released)
        self._leases.add(lease)
        waiter.future.set_result(lease)
        return True

    def _noticed(self, cell: Cell, notice: str) -> None:
        log.debug("worker.cell.notice", cell=cell.cell_id, notice=notice)

    def _note(self, cell: Cell) -> None:
        if self._plan.ledger is not None and cell.mark is not None:
            processes = cell.vitals.processes if cell.vitals is not None else None
            self._plan.ledger.note(cell.cell_id, cell.mark, processes)

    def _emerged(self, cell: Cell, future: asyncio.Future[Emerged]) -> None:
        if self._plan.ledger is not None:
            self._plan.ledger.forget(cell.cell_id)
        emerged = future.result()
        self.figures.died(emerged.record(cell.cell_id, time.time()), emerged.signal)
        self._tell("cell-died", cell, waiting=not emerged.asked)

    def _tell(self, kind: str, cell: Cell, *, waiting: bool = True) -> None:
        """Tells the turns that are in the cell, and as many of those that wait as it has room for.

        To tell them all would take the pace of those that are being answered.
        """
        hears = [lease.hear for lease in self._leases if lease.cell is cell]
        if waiting:
            room = 1 if self.keeps_slot else self.limits.slots
            hears += self._line.hearers(room)
        for hear in hears:
            hear(kind, cell.cell_id, cell.mark or 0)

    def _became_ready(self) -> None:
        first, self._was_ready = not self._was_ready, True
        self._failures = 0
        if first:
            self._plan.on_change()
        self._pump()

    def _give_up(self, reason: str) -> None:
        self.failure = reason
        if self._plan.advertises:
            cell_log.withdrawn(self.name, self.models, reason)
        self._line.refuse(refusals.start_failed(self.model, reason))
        self._plan.on_change()

    def _refusal(self, *, ahead: bool) -> TurnError | None:
        if self._stopping:
            return refusals.stops()
        if self.failure is not None:
            return refusals.start_failed(self.model, self.failure)
        if len(self._line) >= self.limits.max_waiting and not ahead:
            return refusals.no_room(self.model, len(self._line), self.why_waiting())
        return None

    def _released(self, lease: Lease) -> None:
        self._leases.discard(lease)
        self._give_back(lease)
