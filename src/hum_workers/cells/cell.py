"""Cell: one living engine as the bee sees it, a state machine with a single writer.

    cold ── hatch ──> hatching ── ready frame ──> ready ── silence ──> stopping ──> dead
                          └──────────── the engine ends, or the tender ────────────────^

A cell is raised once and never again; its successor is a new cell. Callers ask for what they need
and await it: `ready()`, `emerged`; they never branch on a state they have read. Whatever happens,
each turn that was fed gets exactly one FINISH or ERROR. `fallen` resolves once, when no process of
the cell is alive, or the tender has given up waiting for it and says who is left; `emerged` when,
besides, its devices are cleared: what needs them waits for that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import structlog

from hum_workers import lifecycle
from hum_workers.cells import cell_log, leash, tender_process
from hum_workers.cells import folder as cell_folder
from hum_workers.cells.blame import Diagnose
from hum_workers.cells.custody import Vacate
from hum_workers.cells.emerged import Emerged, Fault, verdict
from hum_workers.cells.states import CellState, moved
from hum_workers.cells.view import cell_view
from hum_workers.errors import ErrorCode, StartFailed
from hum_workers.figures.counts import CellView
from hum_workers.frames import Frame, Mmm
from hum_workers.lifecycle import Vitals
from hum_workers.link import FrameLink
from hum_workers.spec import CellSpec

__all__ = ["Cell", "CellState", "Emerged", "Sink"]

log = structlog.get_logger()

Sink = Callable[[Mmm, Any], None]
"""Takes one turn's engine events in order; FINISH or ERROR is the last. It must not block."""


class Cell:
    """One engine behind its tender. Owns the tender's process, its link and the turns fed to it."""

    def __init__(
        self,
        spec: CellSpec,
        *,
        diagnose: Diagnose,
        on_cancelled: Callable[[bool, float], None] | None = None,
        on_tree: Callable[[Cell], None] = lambda cell: None,
        on_notice: Callable[[Cell, str], None] = lambda cell, notice: None,
        vacate: Vacate | None = None,
    ) -> None:
        self.spec = spec
        self.cell_id = spec.cell_id
        self.state = CellState.COLD
        self.facts: Mapping[str, Any] = {}
        self.stage = ""
        """What its start was at last."""
        self.vitals: Vitals | None = None
        self.hint: Callable[[], str] = str
        """Says what an engine that is silent waits for, where that is known."""
        self.output_tokens = 0
        self.tokens_per_second = 0.0
        self._loop = loop = asyncio.get_running_loop()
        self._born = loop.time()
        self.fallen: asyncio.Future[Emerged] = loop.create_future()
        self.emerged: asyncio.Future[Emerged] = loop.create_future()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ready.add_done_callback(_retrieve)
        self._diagnose = diagnose
        self._on_cancelled = on_cancelled
        self._on_tree = on_tree
        self._on_notice = on_notice
        self._vacate = vacate
        self._sinks: dict[int, Sink] = {}
        self._turns = 0
        self._child: lifecycle.Child | None = None
        self._link: FrameLink | None = None
        self._gone: Mapping[str, Any] | None = None
        self._burial: asyncio.Task[None] | None = None
        self._was_ready = False
        self._killed = False
        self._leash = leash.Leash(self._lose)
        self._lost = ""
        self._sentence: tuple[Fault, str] | None = None

    def __repr__(self) -> str:
        return f"<Cell {self.cell_id} {self.state} turns={len(self._sinks)}>"

    @property
    def mark(self) -> int | None:
        """Pid of the tender, which leads the cell."""
        return self._child.pid if self._child is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether a turn may be fed now."""
        return self.state is CellState.READY

    @property
    def in_flight(self) -> int:
        """Turns that were fed and have not ended."""
        return len(self._sinks)

    def view(self) -> CellView | None:
        """Returns what the cell is now, None when it does not live."""
        if self.mark is None or self.state is CellState.DEAD:
            return None
        return cell_view(
            self.cell_id,
            self.state,
            self.mark,
            age=self._loop.time() - self._born,
            vitals=self.vitals,
            output_tokens=self.output_tokens,
            tokens_per_second=self.tokens_per_second,
            stage=self.stage,
        )

    async def hatch(self) -> None:
        """Starts the tender and tells it what to raise; does not wait for the engine.

        Raises:
            StartFailed: the tender itself could not be started.
        """
        self._move(CellState.HATCHING)
        try:
            self._child, read_fd, write_fd = tender_process.start()
        except OSError as error:
            self._bury(Emerged(reason=f"the tender can't be started: {error}"))
            raise StartFailed(f"the tender can't be started: {error}") from error
        self._on_tree(self)
        self._leash.start()
        self._link = FrameLink(on_frame=self._frame, on_end=self._link_ended)
        try:
            await self._link.open(read_fd, write_fd)
        except BaseException:
            self.kill()
            raise
        self._link.send(Frame.RAISE, self.spec.to_wire())
        cell_log.spawned(self.spec, self.mark)

    async def ready(self) -> None:
        """Returns when the engine has answered a prompt.

        Raises:
            StartFailed: the cell ended before that; the message is its one useful line.
        """
        await asyncio.shield(self._ready)

    def feed(self, body: bytes, sink: Sink) -> int:
        """Sends one chat request to the engine and returns the turn's number for `cancel`."""
        self._turns += 1
        turn = self._turns
        if self.state is not CellState.READY or self._link is None:
            asyncio.get_running_loop().call_soon(sink, Mmm.ERROR, _died(f"cell is {self.state}"))
            return turn
        self._sinks[turn] = sink
        self._link.send(Frame.FEED, turn, body)
        return turn

    def cancel(self, turn: int) -> None:
        """Stops one turn in the engine. Idempotent.

        The sink still hears what was on its way, and then a FINISH `cancelled` with the usage.
        """
        if turn in self._sinks and self._link is not None:
            self._link.send(Frame.CANCEL, turn)

    async def silence(self, grace: float, reason: str, fault: Fault | None = None) -> Emerged:
        """Ends the engine, by force after `grace` seconds, and returns how it ended. Idempotent.

        `fault`: not because that was asked for.
        """
        if fault is not None and self._sentence is None:
            self._sentence = fault, reason
        hatching = self.state is CellState.HATCHING
        if hatching or self.state is CellState.READY:
            self._move(CellState.STOPPING)
            log.info("worker.cell.stopping", cell=self.cell_id, reason=reason)
        if self._link is None:
            self._bury(Emerged(asked=True, reason=reason))
        elif not self.fallen.done():
            self._link.send(Frame.SILENCE, grace, reason)
            self._leash.within(leash.LEAVE + (0 if hatching else grace), "its tender hung")
        return await asyncio.shield(self.emerged)

    def kill(self) -> None:
        """Ends the tender's input and output, which kills the tree. Synchronous, for `finally`.

        A tender that does not take note, being stopped, is killed soon after.
        """
        if self.fallen.done():
            return
        if self.state in (CellState.HATCHING, CellState.READY):
            self._move(CellState.STOPPING)
        self._killed = True
        if self._link is not None:
            self._link.abort()
        self._leash.within(leash.ABORT, "it was killed")
        if self._burial is None and self._child is not None:
            self._begin_burial()

    def _lose(self, reason: str) -> None:
        """Kills a tender that hangs; SIGKILL ends a stopped one, too."""
        assert self._child is not None
        self._lost = reason
        log.error("worker.cell.tender_lost", cell=self.cell_id, pid=self.mark, reason=reason)
        self._child.kill()
        self._begin_burial()

    def _move(self, to: CellState) -> None:
        self.state = moved(self.state, to)

    def _frame(self, frame: list[Any]) -> None:
        self._leash.quiet = 0
        if frame[0] == Frame.MMM:
            self._mmm(frame[1])
            return
        match frame:
            case [Frame.STAGE, str(stage), str(detail)]:
                self.stage = stage
                cell_log.stage(self.cell_id, stage, detail)
            case [Frame.NOTICE, str(notice)]:
                self._on_notice(self, notice)
            case [Frame.READY, dict(facts)]:
                self._hatched(facts)
            case [Frame.VITALS, dict(vitals)]:
                self.vitals = Vitals.from_wire(vitals)
            case [Frame.WORK, int(tokens), rate]:
                self.output_tokens, self.tokens_per_second = tokens, float(rate)
            case [Frame.CANCELLED, int(turn), bool(confirmed), seconds]:
                self._cancelled(turn, confirmed, float(seconds))
            case [Frame.GONE, dict(gone)]:
                self._gone = gone
                self._begin_burial()
            case _:
                log.warning("worker.cell.frame_ignored", cell=self.cell_id, frame=str(frame)[:80])
        if frame[0] in (Frame.STAGE, Frame.READY, Frame.VITALS):
            self._on_tree(self)

    def _mmm(self, events: list[Any]) -> None:
        sinks = self._sinks
        for turn, kind, data in events:
            sink = sinks.get(turn)
            if sink is None:
                continue
            if kind >= Mmm.FINISH:
                del sinks[turn]
                if kind == Mmm.ERROR and data["code"] == ErrorCode.STALLED and (why := self.hint()):
                    data["message"] += f"; {why}"
            sink(kind, data)

    def _hatched(self, facts: dict[str, Any]) -> None:
        if self.state is not CellState.HATCHING:
            return
        self.facts = facts
        self._move(CellState.READY)
        self._was_ready = True
        cell_log.ready(self.cell_id, self.mark, facts)
        self._ready.set_result(None)

    def _cancelled(self, turn: int, confirmed: bool, seconds: float) -> None:
        if self._on_cancelled is not None:
            self._on_cancelled(confirmed, seconds)
        if not confirmed:
            cell_log.cancel_unconfirmed(self.cell_id, turn, seconds)

    def _link_ended(self, why: str) -> None:
        self._begin_burial()

    def _begin_burial(self) -> None:
        if self._burial is None:
            self._burial = asyncio.get_running_loop().create_task(
                self._wait_for_tender(), name=f"burial-{self.cell_id}"
            )

    async def _wait_for_tender(self) -> None:
        """Resolves `fallen` once the tender, and with it the tree, is gone."""
        assert self._child is not None
        assert self._link is not None
        if self._gone is not None:
            # Nothing comes after GONE; an end of input lets a tender leave that waits for one.
            self._link.close()
        self._leash.within(leash.LEAVE, "its tender hung at its end")
        status = await asyncio.shield(self._child.exited)
        self._leash.close()
        self._link.abort()
        left = await lifecycle.end_orphans(self._child.pid)
        self._child.close()
        if self._gone is None and not left:
            # Such a tender could tidy up no more.
            await asyncio.to_thread(cell_folder.clean, self.spec)
        emerged = verdict(
            self._gone,
            tender_status=status,
            orphans=[str(member) for member in left],
            asked=self.state is CellState.STOPPING,
            killed=self._killed,
            lost=self._lost,
            sentence=self._sentence,
            hint=self.hint(),
            was_ready=self._was_ready,
            diagnose=self._diagnose,
        )
        stay = self._gone["left"] if self._gone is not None else ()
        self._bury(emerged, [*(m["pid"] for m in stay), *(member.pid for member in left)])

    def _bury(self, emerged: Emerged, left: Collection[int] = ()) -> None:
        if self.fallen.done():
            return
        was = self.state
        emerged = replace(emerged, turns_lost=len(self._sinks), words=self.spec.advice)
        self.fallen.set_result(emerged)
        if self._vacate is None or not self.spec.devices:
            self._end(emerged)
        else:
            if was in (CellState.HATCHING, CellState.READY):
                self._move(CellState.STOPPING)
            clear = self._clear(self._vacate, emerged, left)
            self._burial = self._loop.create_task(clear, name=f"clear-{self.cell_id}")
        if not self._ready.done():
            self._ready.set_exception(StartFailed(emerged.reason, emerged.death, emerged.advice))
        sinks, self._sinks = self._sinks, {}
        message = f"cell {self.cell_id} died ({was}): {emerged}"
        for sink in sinks.values():
            sink(Mmm.ERROR, _died(message))

    async def _clear(self, vacate: Vacate, emerged: Emerged, left: Collection[int]) -> None:
        self._end(replace(emerged, devices=await vacate(self.cell_id, left)))

    def _end(self, emerged: Emerged) -> None:
        self._move(CellState.DEAD)
        cell_log.emerged(self.cell_id, emerged)
        self.emerged.set_result(emerged)


def _died(message: str) -> dict[str, Any]:
    return {"code": ErrorCode.CELL_DIED.value, "message": message, "usage": None}


def _retrieve(future: asyncio.Future[None]) -> None:
    """Marks the exception as seen: a cell may fail while nobody waits for it."""
    if not future.cancelled():
        future.exception()
