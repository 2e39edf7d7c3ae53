"""Nest: the cells of one egg. It raises them, keeps one alive, and lends its slots to turns.

Owns the egg's cell, the queue of turns that wait for it, and the word whether its models may be
advertised. A cell that was ready once and died is raised again after a pause; one that never got
ready withdraws the models, and the bee stays up and says why.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from hum_workers.cell import Cell
from hum_workers.emerged import Emerged
from hum_workers.errors import ErrorCode, HumError, StartFailed, TurnError
from hum_workers.figures import EggFigures, EggView, LastDeath
from hum_workers.spec import CellSpec

log = structlog.get_logger()

Hear = Callable[[str, str, int], None]
"""Takes an event in the life of a cell: its kind (thrum, section 6), the cell's id, its pid."""


@dataclass(frozen=True, kw_only=True)
class NestLimits:
    """Bounds of one egg's turns; seconds and counts, `[limits]` and `[lifecycle]` of the egg."""

    slots: int
    """Turns that are inside the engine at once; the rest wait here, where a cancel is instant."""
    turn_timeout: float
    wait_timeout: float
    max_waiting: int
    max_waiting_per_sid: int
    stop_grace: float


class Raiser(Protocol):
    """What a kind of worker knows of raising its engine; both methods may block."""

    def spec(self, cell_id: str) -> CellSpec:
        """Returns the spec of the next cell.

        Raises:
            HumError: the engine or the model is not there, in one sentence.
        """

    def diagnose(self, lines: Sequence[str]) -> str:
        """Returns the one useful line of an engine's last output, or an empty string."""


def backoff(first: float = 1.0, most: float = 60.0) -> Iterator[float]:
    """Yields pauses before another raise: doubling up to `most`, with up to a quarter of jitter."""
    pause = first
    while True:
        yield pause * random.uniform(1.0, 1.25)
        pause = min(pause * 2, most)


class Lease:
    """One slot of a ready cell; `release` gives it back, once."""

    def __init__(self, nest: Nest, cell: Cell, hear: Hear) -> None:
        self.cell = cell
        self.hear = hear
        self._nest = nest
        self._held = True

    def release(self) -> None:
        """Gives the slot to the next turn that waits."""
        if self._held:
            self._held = False
            self._nest._released(self)


class Nest:
    """The cells of one egg. `on_change` is called when `advertised` has changed."""

    def __init__(
        self,
        name: str,
        *,
        models: Sequence[str],
        raiser: Raiser,
        limits: NestLimits,
        on_prompt: bool,
        default_max_tokens: int | None,
        start_slot: asyncio.Semaphore,
        on_change: Callable[[], None],
        pauses: Callable[[], Iterator[float]] = backoff,
    ) -> None:
        self.name = name
        self.models = list(models)
        self.model = self.models[0]
        """The name under which the engine serves; the others are aliases."""
        self.limits = limits
        self.default_max_tokens = default_max_tokens
        self.cell: Cell | None = None
        self.figures = EggFigures()
        self.failure: str | None = None
        """Why the models are withdrawn for good; None while they are not."""
        self._raiser = raiser
        self._on_prompt = on_prompt
        self._start_slot = start_slot
        self._on_change = on_change
        self._pauses = pauses
        self._loop = asyncio.get_running_loop()
        self._queue: deque[asyncio.Future[Lease]] = deque()
        self._hearers: dict[asyncio.Future[Lease], Hear] = {}
        self._leases: set[Lease] = set()
        self._used = 0
        self._raised = 0
        self._was_ready = False
        self._stopping = False
        self._keeper: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    @property
    def advertised(self) -> bool:
        """Whether humd may send prompts for these models now."""
        if self._stopping or self.failure is not None:
            return False
        return self._on_prompt or self._was_ready

    @property
    def waiting(self) -> int:
        """Turns that wait for a slot."""
        return len(self._queue)

    def start(self) -> None:
        """Begins to raise the cell, unless the egg waits for its first prompt."""
        if not self._on_prompt:
            self._keep()

    async def settled(self) -> None:
        """Returns when the first raise has succeeded or failed; `failure` tells which."""
        self._keep()
        await self._settled.wait()

    def view(self) -> EggView:
        """Returns what the egg is now."""
        return EggView(
            egg=self.name,
            model=self.model,
            advertised=self.advertised,
            failure=self.failure,
            running=self._used,
            waiting=max(0, self.figures.open_turns - self._used),
            cells=[view] if self.cell is not None and (view := self.cell.view()) else [],
            figures=self.figures,
        )

    def lease(self, hear: Hear = lambda kind, cell_id, pid: None) -> asyncio.Future[Lease]:
        """Returns a future of a slot, first come, first served; cancel it to stop waiting.

        It fails with a TurnError when the cell can't be raised or the bee stops. `hear` is told
        what happens to the cell until the slot is given back.
        """
        future: asyncio.Future[Lease] = self._loop.create_future()
        if (refusal := self._refusal()) is not None:
            future.set_exception(refusal)
            return future
        self._queue.append(future)
        self._hearers[future] = hear
        future.add_done_callback(self._left)
        self._keep()
        self._pump()
        return future

    def why_waiting(self) -> str:
        """Returns in a few words what a waiting turn waits for."""
        if self.cell is None or not self.cell.is_ready:
            return f"its cell is not ready; {len(self._queue)} prompts wait"
        return f"{self._used} prompts run and {len(self._queue)} wait"

    async def stop(self, grace: float, reason: str) -> Emerged | None:
        """Ends the cell and the keeping of it; turns that wait get `shutting_down`."""
        self._stopping = True
        self._refuse_all(TurnError(ErrorCode.SHUTTING_DOWN, f"the bee stops: {reason}"))
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        return await self.cell.silence(grace, reason) if self.cell is not None else None

    def kill(self) -> None:
        """Kills the cell at once; synchronous."""
        self._stopping = True
        if self.cell is not None:
            self.cell.kill()

    async def buried(self, timeout: float) -> bool:
        """Returns whether the cell, if there is one, is dead within `timeout` seconds."""
        if self.cell is None or self.cell.emerged.done():
            return True
        done, _ = await asyncio.wait({self.cell.emerged}, timeout=timeout)
        return bool(done)

    def _keep(self) -> None:
        if self._keeper is None and not self._stopping:
            self._keeper = self._loop.create_task(self._keep_alive(), name=f"nest-{self.name}")

    async def _keep_alive(self) -> None:
        """Raises cell after cell until one fails for good."""
        pauses = self._pauses()
        while True:
            try:
                cell = await self._raise()
            except Exception as error:
                if not isinstance(error, HumError):
                    log.exception("worker.cell.raise.failed", egg=self.name)
                if not self._was_ready:
                    self._give_up(str(error))
                    return
                log.error("worker.cell.start_failed", egg=self.name, reason=str(error))
            else:
                self._became_ready()
                emerged = await asyncio.shield(cell.emerged)
                self._used = 0
                if emerged.asked:
                    return
                if emerged.seconds > 300:
                    pauses = self._pauses()
            pause = next(pauses)
            self.figures.restarts += 1
            log.warning("worker.cell.restart", egg=self.name, seconds=round(pause, 1))
            await asyncio.sleep(pause)

    async def _raise(self) -> Cell:
        """Returns a new cell that is ready; cells on a host are started one by one."""
        self._raised += 1
        cell_id = f"{self.name}-{self._raised}"
        async with self._start_slot:
            spec = await asyncio.to_thread(self._raiser.spec, cell_id)
            cell = Cell(spec, diagnose=self._raiser.diagnose, on_cancelled=self.figures.cancelled)
            self.cell = cell
            # A callback, not a task: the turns that were fed hear it before their error.
            cell.emerged.add_done_callback(partial(self._emerged, cell))
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

    def _emerged(self, cell: Cell, future: asyncio.Future[Emerged]) -> None:
        emerged = future.result()
        self.figures.died(
            LastDeath(
                cell=cell.cell_id, death=emerged.death, reason=emerged.reason, at=time.time()
            ),
            emerged.signal,
        )
        self._tell("cell-died", cell)

    def _tell(self, kind: str, cell: Cell) -> None:
        """Tells the turns that wait for the cell or are in it."""
        leased = [lease.hear for lease in self._leases if lease.cell is cell]
        for hear in (*self._hearers.values(), *leased):
            hear(kind, cell.cell_id, cell.mark or 0)

    def _became_ready(self) -> None:
        first, self._was_ready = not self._was_ready, True
        self._settled.set()
        if first:
            self._on_change()
        self._pump()

    def _give_up(self, reason: str) -> None:
        self.failure = reason
        log.error("worker.model.withdrawn", egg=self.name, models=self.models, reason=reason)
        self._settled.set()
        self._refuse_all(self._start_error(reason))
        self._on_change()

    def _start_error(self, reason: str) -> TurnError:
        message = f"the engine of {self.model} can't be started: {reason}"
        return TurnError(ErrorCode.CELL_START_FAILED, message)

    def _refusal(self) -> TurnError | None:
        if self._stopping:
            return TurnError(ErrorCode.SHUTTING_DOWN, "the bee stops; ask again when it is back")
        if self.failure is not None:
            return self._start_error(self.failure)
        if len(self._queue) >= self.limits.max_waiting:
            return TurnError(
                ErrorCode.NO_CAPACITY,
                f"{len(self._queue)} prompts wait for {self.model} already ([limits] max_waiting): "
                f"{self.why_waiting()}",
            )
        return None

    def _left(self, future: asyncio.Future[Lease]) -> None:
        self._hearers.pop(future, None)
        if future.cancelled() and future in self._queue:
            self._queue.remove(future)

    def _refuse_all(self, error: TurnError) -> None:
        queue, self._queue = self._queue, deque()
        for future in queue:
            if not future.done():
                future.set_exception(error)

    def _pump(self) -> None:
        """Gives free slots of a ready cell to the turns that wait longest."""
        cell = self.cell
        while self._queue and cell is not None and cell.is_ready:
            if self._used >= self.limits.slots:
                return
            future = self._queue.popleft()
            if not future.done():
                self._used += 1
                lease = Lease(self, cell, self._hearers.pop(future))
                self._leases.add(lease)
                future.set_result(lease)

    def _released(self, lease: Lease) -> None:
        self._leases.discard(lease)
        if (cell := lease.cell) is self.cell and cell.is_ready:
            self._used -= 1
            self._pump()
