"""The nest of a coordinator: raises llama-server once every layer of its model has a holder.

The route is planned from what the slices say at their doors, leased as a whole in one order that
all coordinators share, and proven after the load by llama-server's own report. Whatever ends the
cell gives the slices back, and the next one begins with a route that is planned anew. A slice that
joins never disturbs a cell that lives.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace

from hum_workers.cells import cell_log
from hum_workers.cells.blame import AT_ONCE, Again
from hum_workers.cells.cell import Cell
from hum_workers.cells.emerged import Fault
from hum_workers.cells.lasting import LastingNest
from hum_workers.cells.plan import NestPlan, backoff
from hum_workers.cells.room import Room
from hum_workers.errors import HumError, StartFailed
from hum_workers.figures.counts import Death, EggView
from hum_workers.llama_rpc_worker import route_log
from hum_workers.llama_rpc_worker.facts import SliceState
from hum_workers.llama_rpc_worker.gathering import Gathering
from hum_workers.llama_rpc_worker.holding import Holding, NotHeld, named
from hum_workers.llama_rpc_worker.idle_canary import PERIOD, IdleCanary
from hum_workers.llama_rpc_worker.layout import flags
from hum_workers.llama_rpc_worker.patience import Patience
from hum_workers.llama_rpc_worker.proof import Proof
from hum_workers.llama_rpc_worker.route import Route, RouteError
from hum_workers.llama_rpc_worker.router import RoutedRaiser, Router

HOLD_BACK = 30.0
"""Seconds after a loss in which the same slices may come back before others are taken."""
WITHDRAW = 3.0
"""Seconds without a route after which humd hears of it: a recycled slice is back in less."""
NOT_HELD = 0.5, 10.0
"""Seconds before slices are asked for again that could not be leased: at first, and at most."""
HURRY = 0.25
"""Seconds between two looks at slices that are expected back."""
LOSSES_PAUSE = 5.0
"""Seconds before the next try where slice after slice is lost before the model is loaded."""


class RouteNest(LastingNest):
    """See the module."""

    def __init__(
        self,
        plan: NestPlan,
        raiser: RoutedRaiser,
        *,
        gathering: Gathering,
        router: Router,
        room: Room | None = None,
        hold_back: float = HOLD_BACK,
        canary: float = PERIOD,
    ) -> None:
        super().__init__(plan, raiser, room=room)
        self.why_incomplete: tuple[str, ...] = ("no slice was asked yet",)
        """One line for each thing that keeps the route from being complete; empty when it is."""
        self._routed = raiser
        self._gathering = gathering
        self._router = router
        self._hold_back = hold_back
        self._holding: Holding | None = None
        self._proof: Proof | None = None
        self._last: Mapping[str, str] = {}
        """The slices of the last route that was raised, hid to name."""
        self._ended_at = -math.inf
        """When that route was given up."""
        self._refusals = backoff(*NOT_HELD)
        self._losses = 0
        """Slices lost in a row, without a cell that was ready."""
        self._stirred = asyncio.Event()
        self._withdrawal: asyncio.TimerHandle | None = None
        self._open = False
        """Whether the route is complete, or was a moment ago."""
        self._returns: set[asyncio.Task[object]] = set()
        self._readable = False
        """The router has read what it plans with."""
        self._canary = IdleCanary(self._condemn, period=canary)

    @property
    def advertised(self) -> bool:
        """Whether humd may send prompts: the egg says so, and the route is complete."""
        return self._open and super().advertised

    def why_waiting(self) -> str:
        """Returns in a few words what a waiting turn waits for."""
        if self._holding is None and self.why_incomplete:
            return self._why()
        return super().why_waiting()

    def view(self) -> EggView:
        """See `Nest.view`."""
        why = self.why_incomplete
        return replace(super().view(), note=self._why() if why else "", covered=not why)

    def start(self) -> None:
        """See `Nest.start`; humd hears of the route before the first prompt."""
        super().start()
        if self._plan.on_prompt:
            self._spawn(self._refreshed(), "read")

    def gathered(self) -> None:
        """Hears that the gathering sees something else."""
        self._look()
        self._stirred.set()

    async def stop(self, grace: float, reason: str) -> None:
        """See `Nest.stop`; returns when the slices have been given back."""
        self._canary.close()
        if self._withdrawal is not None:
            self._withdrawal.cancel()
        await super().stop(grace, reason)
        if self._returns:
            await asyncio.wait(self._returns)

    async def _one_life(self) -> float | None:
        if self._returns:  # what the last life had
            await asyncio.wait(self._returns)
        if self._last:
            await self._gathering.fresh()
        if (error := await self._refreshed()) is not None:
            return 0 if self._start_failed(error) is Again.AT_ONCE else next(self._pauses)
        route = await self._covered()
        if route is None:
            return None
        try:
            holding = await Holding.take(route, self._gathering, self._slice_lost)
        except NotHeld as error:
            route_log.not_held(self.name, str(error))
            self._gathering.hurry()
            return next(self._refusals)
        self._refusals = backoff(*NOT_HELD)
        self._holding = holding
        self._last = {one.offer.facts.hid: named(one.offer) for one in route.shares}
        self._routed.explain = holding.explain
        self._proof = None
        if route.shares:  # else where everything is, llama-server may decide
            self._routed.route_flags = flags(route, holding.endpoints)
            self._proof = Proof(route, holding.endpoints)
        try:
            pause = await super()._one_life()
        finally:
            self._give_back_slices(holding)
            self._ended_at = self._loop.time()
        if not self._was_lost(holding):
            return pause
        self._losses += 1
        self._pauses = self._plan.pauses()  # those are for faults of its own
        return 0.0 if self._losses <= AT_ONCE else LOSSES_PAUSE

    def _was_lost(self, holding: Holding) -> bool:
        """Says whether a slice's end is why the cell has ended."""
        emerged = self.cell.emerged if self.cell is not None else None
        return holding.lost is not None or (
            emerged is not None and emerged.done() and emerged.result().death is Death.SLICE
        )

    def _start_failed(self, error: Exception) -> Again:
        if isinstance(error, StartFailed) and error.kind == Death.SLICE:
            # No failure of this egg's: it never counts towards giving up.
            mild = self._holding is not None and self._holding.orderly
            cell_log.start_failed(self.name, error, "as soon as its route is whole", mild=mild)
            return Again.AT_ONCE
        return super()._start_failed(error)

    async def _refreshed(self) -> HumError | None:
        """Has the router read what it needs, and looks; returns why it can't."""
        try:
            await self._router.refresh()
        except HumError as error:
            self._complete((str(error),))
            return error
        self._readable = True
        self._look()
        return None

    async def _covered(self) -> Route | None:
        """Returns a route that may be taken, when there is one; None: it was given up."""
        patience = Patience()
        while True:
            self._stirred.clear()
            route = self._look()
            if route is not None:
                route_log.planned(self.name, route)
                return route
            expected = self._expects()
            if self._ends_soon and patience.over(self._loop.time(), expected=expected):
                self._give_up(self._why())
                self.failure = "\n".join(f"incomplete: {line}" for line in self.why_incomplete)
                return None
            if expected:
                self._gathering.hurry()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), HURRY if expected else 1.0)

    @property
    def _ends_soon(self) -> bool:
        """Nobody but who asks now hears of the models, and the slices have answered once."""
        return self._gathering.asked and not self._plan.advertises

    def _why(self) -> str:
        return f"the route is not complete: {'; '.join(self.why_incomplete)}"

    def _expects(self) -> bool:
        """Says whether a slice will soon be there by itself."""
        soon = SliceState.STARTING, SliceState.RECYCLING
        return self._loop.time() < self._ended_at + self._hold_back or any(
            offer.facts.state in soon for offer in self._gathering.offers
        )

    def _look(self) -> Route | None:
        """Plans, and keeps the word on whether the route is complete."""
        if self._holding is not None:
            self._complete(())
            return None
        if not (self._readable and self._gathering.asked):
            return None
        try:
            route = self._router.plan()
        except RouteError as error:
            self._complete((*self._gone(), *error.problems))
            return None
        if self._ended_at + self._hold_back > self._loop.time() and (away := self._away()):
            # Whoever is quicker to be recycled must not take what the others have held.
            seconds = f"{self._hold_back:g} s"
            self._complete((f"{', '.join(away)} may come back within {seconds} of the loss",))
            return None
        self._complete(())
        return route

    def _complete(self, why_not: tuple[str, ...]) -> None:
        if why_not != self.why_incomplete and why_not:
            new = [line for line in why_not if line not in self.why_incomplete]
            route_log.incomplete(self.name, new)
        self.why_incomplete = why_not
        if not why_not:
            if self._withdrawal is not None:
                self._withdrawal.cancel()
                self._withdrawal = None
            if not self._open:
                self._open = True
                self._plan.on_change()
        elif self.advertised and self._withdrawal is None:
            self._withdrawal = self._loop.call_later(WITHDRAW, self._withdraw)

    def _withdraw(self) -> None:
        self._withdrawal = None
        self._open = False
        route_log.withdrawn(self.name, self.models, self.why_incomplete)
        self._plan.on_change()

    def _became_ready(self) -> None:
        assert self.cell is not None
        if self._proof is not None and (differences := self._proof.differences()):
            self._give_up(f"llama-server's own report is not the route: {'; '.join(differences)}")
            self.cell.kill()
            return
        super()._became_ready()
        self._losses = 0
        self._canary.watch(self.cell, self.model, lambda: self.busy)

    def _noticed(self, cell: Cell, notice: str) -> None:
        if cell is self.cell and self._proof is not None:
            self._proof.line(notice)

    def _slice_lost(self, why: str) -> None:
        """A slice of the route is gone; llama-server would find out with its next token."""
        self._condemn(why)

    def _kept(self, cell: Cell) -> None:
        super()._kept(cell)
        cell.hint = self._silent

    def _silent(self) -> str:
        return self._holding.silent() if self._holding is not None else ""

    def _away(self) -> list[str]:
        """Returns the slices of the last route that can't be had now."""
        offers = self._gathering.offers
        here = {one.facts.hid for one in offers if one.facts.state is SliceState.FREE}
        return [name for hid, name in self._last.items() if hid not in here]

    def _gone(self) -> list[str]:
        """Returns a line for each slice of the last route that no longer says anything."""
        here = {one.facts.hid for one in self._gathering.offers}
        return [
            f"{name}, of the last route, does not answer: start its bee or mend the link"
            for hid, name in self._last.items()
            if hid not in here
        ]

    def _condemn(self, why: str) -> None:
        cell = self.cell
        if cell is not None and not cell.emerged.done():
            silent = self._silent() if self._holding and self._holding.lost is None else ""
            told = f"{why}; {silent}" if silent and silent not in why else why
            mild = self._holding is not None and self._holding.orderly
            self._spawn(cell.silence(0, told, Fault(Death.SLICE, mild)), "condemned")

    def _give_back_slices(self, holding: Holding) -> None:
        """Frees the slices as soon as the cell is dead; with it they would be recycled under it."""
        self._holding = None
        self._canary.close()
        self._spawn(self._after(self.cell, holding), "free")

    def _spawn(self, work: Coroutine[None, None, object], what: str) -> None:
        task = self._loop.create_task(work, name=f"{what}-{self.name}")
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _after(self, cell: Cell | None, holding: Holding) -> None:
        if cell is not None:
            await asyncio.shield(cell.emerged)
        await holding.release()
        self._gathering.hurry()
