"""The nest of a coordinator: raises llama-server once every layer of its model has a holder.

The route is planned from what the slices say at their doors, leased as a whole in one order that
all coordinators share, and proven after the load by llama-server's own report. Whatever ends the
cell gives the slices back, and the next one begins with a route that is planned anew. A slice that
joins never disturbs a cell that lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import cast

from hum_workers.cells import cell_log
from hum_workers.cells.blame import AT_ONCE, Again
from hum_workers.cells.cell import Cell
from hum_workers.cells.emerged import Fault
from hum_workers.cells.lasting import LastingNest
from hum_workers.cells.plan import NestPlan, Raiser, backoff
from hum_workers.cells.room import Room
from hum_workers.errors import HumError, StartFailed
from hum_workers.figures.counts import Death, EggView
from hum_workers.llama_rpc_worker import route_log
from hum_workers.llama_rpc_worker.facts import SliceState
from hum_workers.llama_rpc_worker.gathering import Gathering
from hum_workers.llama_rpc_worker.holding import Holding, NotHeld
from hum_workers.llama_rpc_worker.idle_canary import IdleCanary
from hum_workers.llama_rpc_worker.last_route import LastRoute
from hum_workers.llama_rpc_worker.layout import flags
from hum_workers.llama_rpc_worker.left_out import GOOD_LIFE, LeftOut
from hum_workers.llama_rpc_worker.patience import Patience
from hum_workers.llama_rpc_worker.proof import Proof
from hum_workers.llama_rpc_worker.route import Route, RouteError
from hum_workers.llama_rpc_worker.router import RoutedRaiser, Router, RouteTerms

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
        terms: RouteTerms,
    ) -> None:
        super().__init__(plan, raiser, room=room)
        self.why_incomplete: tuple[str, ...] = ("no slice was asked yet",)
        """One line for each thing that keeps the route from being complete; empty when it is."""
        self._routed = raiser
        self._gathering = gathering
        self._router = router
        self.terms = terms
        self._holding: Holding | None = None
        self._proof: Proof | None = None
        self._last = LastRoute()
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
        self._canary = IdleCanary(self._condemn, period=terms.canary)
        self._left_out = LeftOut(self._loop.time, partial(route_log.left_out, self.name))
        self._trial = False
        """A slice of the route was left out: humd hears of the models when the cell is ready."""
        self._ready_at: float | None = None
        """Since when the cell of this route is ready."""

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
        if self._last.slices:
            await self._gathering.fresh()
        if (error := await self._refreshed()) is not None:
            return 0 if self._start_failed(error) is Again.AT_ONCE else next(self._pauses)
        route = await self._covered()
        if route is None:
            return None
        holding = await self._taken(route)
        if holding is None:
            return next(self._refusals)
        self._refusals = backoff(*NOT_HELD)
        self._routed.explain = holding.explain
        self._proof = None
        if route.shares:  # else where everything is, llama-server may decide
            self._routed.route_flags = flags(route, holding.endpoints)
            self._proof = Proof(route, holding.endpoints)
        before = self.cell
        try:
            pause = await super()._one_life()
        finally:
            self._give_back_slices(holding)
            self._last.ended(self._loop.time())
        lost = self._loss(holding, self.cell if self.cell is not before else None)
        if self._ready_at is not None and self._loop.time() > self._ready_at + GOOD_LIFE:
            self._left_out.proven(self._last.slices)
        elif lost:
            self._left_out.lost(holding.blamed(lost), lost, ready=self._ready_at is not None)
        if lost is None:
            return pause
        self._losses += 1
        self._pauses = self._plan.pauses()  # those are for faults of its own
        return 0.0 if self._losses <= AT_ONCE else LOSSES_PAUSE

    async def _taken(self, route: Route) -> Holding | None:
        """Leases the slices of the route; None: they, or the egg, are no longer as planned."""
        try:
            holding = await Holding.take(
                route, self._gathering, self._condemn, unencrypted=self.terms.unencrypted
            )
        except NotHeld as error:
            route_log.not_held(self.name, str(error))
            self._left_out.refused(error.refused, str(error), free=error.free)
            self._gathering.hurry()
            return None
        if not self._readable:
            await holding.release()
            return None
        self._holding, self._ready_at = holding, None
        self._last.began(route)
        self._left_out.held(self._last.slices)
        self._look()
        return holding

    def _replace(self, raiser: Callable[[int], Raiser], *, renew: bool) -> None:
        super()._replace(raiser, renew=renew)
        self._routed = cast(RoutedRaiser, self._raiser)
        self._readable = False
        self._last.other_egg = renew
        self._stirred.set()
        if self._plan.on_prompt:
            self._spawn(self._refreshed(), "read")

    def _loss(self, holding: Holding, cell: Cell | None) -> str | None:
        """Returns why a slice's end was that of the cell; None: it was not."""
        if holding.lost is None and cell is not None and cell.emerged.done():
            emerged = cell.emerged.result()
            return str(emerged) if emerged.death is Death.SLICE else None
        return holding.lost

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
            if not self._readable:  # its egg has changed
                await self._refreshed()
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
                async with asyncio.timeout(HURRY if expected else 1.0):
                    await self._stirred.wait()

    @property
    def _ends_soon(self) -> bool:
        """Nobody but who asks now hears of the models, and the slices have answered once."""
        return self._gathering.asked and not self._plan.advertises

    def _why(self) -> str:
        return f"the route is not complete: {'; '.join(self.why_incomplete)}"

    @property
    def _held_back(self) -> bool:
        return self._last.holds_back(self._loop.time(), self.terms.hold_back)

    def _expects(self) -> bool:
        """Says whether a slice will soon be there by itself."""
        soon = SliceState.STARTING, SliceState.RECYCLING
        return self._held_back or any(offer.facts.state in soon for offer in self._gathering.offers)

    def _look(self) -> Route | None:
        """Plans, and keeps the word on whether the route is complete."""
        if self._holding is not None:
            self._complete(())
            return None
        if not (self._readable and self._gathering.asked):
            return None
        offers, out = self._gathering.offers, self._left_out.now()
        try:
            route = self._router.plan(out)
        except RouteError as error:
            gone = self._last.gone(offers, out)
            self._complete((*gone, *self._left_out.reasons(), *error.problems))
            return None
        if self._held_back and (away := self._last.away(offers, out)):
            seconds = f"{self.terms.hold_back:g} s"
            self._complete((f"{', '.join(away)} may come back within {seconds} of the loss",))
            return None
        self._trial = any(self._left_out.on_trial(one.offer.facts.hid) for one in route.shares)
        self._complete(())
        return route

    def _complete(self, why_not: tuple[str, ...]) -> None:
        if why_not != self.why_incomplete and why_not:
            new = [line for line in why_not if line not in self.why_incomplete]
            route_log.incomplete(self.name, new)
        self.why_incomplete = why_not
        if not why_not:
            if self._trial:
                return
            if self._withdrawal is not None:
                self._withdrawal.cancel()
                self._withdrawal = None
            if not self._open:
                self._open = True
                self._plan.on_change()
        elif self.advertised and self._withdrawal is None:
            self._withdrawal = self._loop.call_later(WITHDRAW, self._withdraw, why_not)

    def _withdraw(self, why: tuple[str, ...]) -> None:
        self._withdrawal = None
        self._open = False
        route_log.withdrawn(self.name, self.models, self.why_incomplete or why)
        self._plan.on_change()

    def _became_ready(self) -> None:
        assert self.cell is not None
        if self._proof is not None and (differences := self._proof.differences()):
            self._give_up(f"llama-server's own report is not the route: {'; '.join(differences)}")
            self.cell.kill()
            return
        self._ready_at, self._trial = self._loop.time(), False
        self._complete(())
        super()._became_ready()
        self._losses = 0
        self._canary.period = self.terms.canary
        self._canary.watch(self.cell, self.model, lambda: self.busy)

    def _noticed(self, cell: Cell, notice: str) -> None:
        if cell is self.cell and self._proof is not None:
            self._proof.line(notice)

    def _kept(self, cell: Cell) -> None:
        super()._kept(cell)
        cell.hint = self._silent

    def _silent(self) -> str:
        return self._holding.silent() if self._holding is not None else ""

    def _condemn(self, why: str) -> None:
        """Ends the cell; llama-server would find out with its next token."""
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
