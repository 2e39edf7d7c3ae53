"""Answer: the steps of one turn. The engine is asked, tools run, and it is asked again.

A turn holds a slot of a cell only while the engine answers. Foragers' tools run while the turn is
held; an asker's tool ends it, and the conversation is parked until the result comes (thrum,
section 7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from hum_workers.cells.cell import Cell
from hum_workers.cells.nest import Lease, Nest
from hum_workers.errors import ErrorCode, TurnError
from hum_workers.figures.counts import TurnFigures
from hum_workers.frames import Mmm
from hum_workers.media.pollen import refuse_untaken
from hum_workers.tools.call_id import CallIds, Owner
from hum_workers.tools.calls import Calls, Held
from hum_workers.tools.line import ToolLine
from hum_workers.tools.result import Result
from hum_workers.tools.step import Call, Pieces, Step
from hum_workers.turns.ending import Ending, Finish, Usage, added, with_usage
from hum_workers.turns.halt import Halt
from hum_workers.turns.reply import Reply
from hum_workers.turns.request import chat_request, refusal_line, room_from_refusal, to_json
from hum_workers.turns.talk import Talk

log = structlog.get_logger()

CANCEL_ANSWER = 1.0
"""Seconds to wait for the tender's word on a cancelled turn; it only brings the usage."""
HUMD_LOST = "humd was lost since this turn began, and it can't call tools any more; ask again"


class Park(Protocol):
    """Keeps a conversation until the result of an asker's call comes."""

    def __call__(self, nest: Nest, call_id: str, sid: str, talk: Talk) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Tooling:
    """What a turn needs of its bee to call tools."""

    ids: CallIds
    calls: Calls
    line: ToolLine
    park: Park


class Answer:
    """One turn's way from what is asked to its ending."""

    def __init__(
        self,
        talk: Talk,
        *,
        nest: Nest,
        reply: Reply,
        halt: Halt,
        figures: TurnFigures,
        tooling: Tooling | None,
    ) -> None:
        self._talk = talk
        self._nest = nest
        self._reply = reply
        self._halt = halt
        self._figures = figures
        self._tooling = tooling
        self._loop = asyncio.get_running_loop()
        self._names = [tool.name for tool in talk.prompt.tools]
        self._tools = {tool.name: tool for tool in talk.prompt.tools}
        self._usage: Usage | None = None
        self._asked = 0
        """Requests to the engine so far."""
        self._corrected = False
        """The model was told once that its call can't be made."""
        self._repeats = 0
        """Requests that were made again because the cell had died; one at most."""
        self._cell: Cell | None = None
        """The cell that was asked last."""
        self._lease: Lease | None = None

    async def run(self, wait: asyncio.TimerHandle) -> Ending:
        """Returns how the turn ends, with the usage of all its steps.

        `wait` ends the turn while it waits for its first slot.
        """
        try:
            ending = await self._steps(wait)
        except TurnError as error:
            ending = error.with_traceback(None)
        except asyncio.CancelledError:
            if self._halt.ending is None:
                raise
            ending = self._halt.ending
        finally:
            self._release()
        return with_usage(ending, self._usage)

    async def _steps(self, wait: asyncio.TimerHandle) -> Ending:
        if self._talk.step is not None and self._talk.step.waiting(Owner.ASKER):
            return self._hand_over()
        self._talk = self._talk.closed()
        while True:
            answer = await self._engine(wait)
            if self._may_be_repeated(answer):
                wait = await self._next_cell()
                continue
            if not isinstance(answer, Step):
                return answer
            self._reply.stop_block()
            self._check(answer)
            await self._run_foragers(answer)
            assert self._talk.step is not None
            if self._talk.step.waiting(Owner.ASKER):
                return self._hand_over()
            self._talk = self._talk.closed()
            wait = self._wait_timer()

    def _may_be_repeated(self, answer: Ending | Step) -> bool:
        """A turn whose cell died before it had sent any text may wait for the next one, once."""
        died = isinstance(answer, TurnError) and answer.code is ErrorCode.CELL_DIED
        fresh = not self._repeats and not self._reply.started and self._halt.ending is None
        return died and fresh and self._nest.raises

    async def _next_cell(self) -> asyncio.TimerHandle:
        """Waits for the burial of the cell, which may still look alive; returns the next wait."""
        cell, wait = self._cell, self._wait_timer()
        assert cell is not None
        self._repeats += 1
        log.info("worker.turn.repeated", sid=self._reply.sid[:80], cell=cell.cell_id)
        await self._halt.wait(asyncio.shield(cell.fallen))
        self._release()
        return wait

    def _check(self, step: Step) -> None:
        """Raises the error that ends the turn instead of this step."""
        most = self._nest.tools.max_steps
        if self._asked - self._repeats > most:
            text = f"the model called tools in more than {most} steps ([tools] max_steps)"
            raise TurnError(ErrorCode.TOO_MANY_STEPS, text)
        if step.wrong and self._corrected:
            text = f"the model called tools wrongly, and again when it was told: {step.wrong}"
            raise TurnError(ErrorCode.ENGINE_ERROR, text)
        self._corrected = self._corrected or bool(step.wrong)
        if step.sound and not (self._tooling and self._tooling.line.alive()):
            raise TurnError(ErrorCode.HUMD_LOST, HUMD_LOST)

    def _hand_over(self) -> Ending:
        """Sends the asker its next call, parks the conversation and ends the turn."""
        talk, tooling, reply = self._talk, self._tooling, self._reply
        assert talk.step is not None
        if tooling is None or not tooling.line.alive():
            return TurnError(ErrorCode.HUMD_LOST, HUMD_LOST)
        call = talk.step.waiting(Owner.ASKER)[0]
        reply.announce(talk.cell_id, self._nest.model, self._names)
        tooling.park(self._nest, call.call_id, reply.sid, talk)
        self._send(call, tooling)
        reply.tool(call.use(reply.sid))
        return Finish("tool_calls")

    def _send(self, call: Call, tooling: Tooling) -> None:
        lost = TurnError(ErrorCode.HUMD_LOST, HUMD_LOST, usage=self._usage)
        self._reply.call(*tooling.line.line(call, self._reply.sid), lost)

    async def _run_foragers(self, step: Step) -> None:
        """Runs a step's calls of foragers' tools side by side; the turn holds no slot meanwhile."""
        calls = {call.call_id: call for call in step.waiting(Owner.FORAGER)}
        if not calls or self._tooling is None:
            return

        def heard(call_id: str, result: Result) -> None:
            self._reply.tool(calls[call_id].executed(self._reply.sid, result))

        held = self._tooling.calls.open(calls, heard)
        timer = self._halt.after(
            self._nest.tools.step_timeout, lambda: self._late([calls[i].name for i in held.open])
        )
        try:
            for call in calls.values():
                self._send(call, self._tooling)
            results = await self._held(held)
        finally:
            timer.cancel()
            self._tooling.calls.close(held)
        self._talk = self._talk.answered({call_id: r.text for call_id, r in results.items()})

    async def _held(self, held: Held) -> Mapping[str, Result]:
        counted = self._lease is None
        self._nest.held += counted
        try:
            return await self._halt.wait(held.done)
        finally:
            self._nest.held -= counted

    def _late(self, names: list[str]) -> TurnError:
        seconds = self._nest.tools.step_timeout
        text = f"no result of {', '.join(names)} within {seconds:g} s ([tools] step_timeout)"
        return TurnError(ErrorCode.TOOL_TIMEOUT, text)

    def _wait_timer(self) -> asyncio.TimerHandle:
        seconds = self._nest.limits.wait_timeout

        def why() -> TurnError:
            message = (
                f"waited {seconds:g} s for a slot of '{self._nest.model}' ([limits] wait_timeout): "
            )
            return TurnError(ErrorCode.NO_CAPACITY, message + self._nest.why_waiting())

        return self._halt.after(seconds, why)

    async def _engine(self, wait: asyncio.TimerHandle) -> Ending | Step:
        """Asks the engine once, as soon as there is a slot."""
        lease = self._lease
        if lease is None:
            reply, again = self._reply, self._asked > 0
            waiting = self._nest.lease(reply.pulse, sid=reply.sid, ahead=again)
            lease = self._lease = await self._halt.wait(waiting)
        wait.cancel()
        self._cell = lease.cell
        if self._halt.ending is not None:
            return self._halt.ending
        takes = lease.cell.facts.get("media", ())
        refuse_untaken(self._talk.prompt.media, takes, self._nest.model)
        if not self._asked:
            self._begin()
        self._reply.announce(lease.cell.cell_id, self._nest.model, self._names)
        if self._halt.ending is not None:  # too much waits for humd: nothing for the engine
            return self._halt.ending
        answer = await self._ask_that_fits(lease)
        if not self._nest.keeps_slot:
            self._release()
        return answer

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _begin(self) -> None:
        self._figures.admitted()
        seconds = self._nest.limits.turn_timeout
        text = f"no end after {seconds:g} s ([limits] turn_timeout)"
        self._halt.after(seconds, lambda: TurnError(ErrorCode.TURN_TIMEOUT, text))

    async def _ask_that_fits(self, lease: Lease) -> Ending | Step:
        facts, blocks = lease.cell.facts, self._reply.blocks
        request = chat_request(
            self._talk.prompt,
            model=self._nest.model,
            max_model_len=facts.get("max_model_len"),
            default_max_tokens=self._nest.default_max_tokens,
            more=lease.cell.spec.request_fields,
            renamed=lease.cell.spec.renamed_fields,
            most_schema=lease.cell.spec.most_schema,
        )
        self._asked += 1
        ending = await self._ask(lease, request)
        if (
            isinstance(ending, TurnError)
            and self._reply.blocks == blocks
            and self._halt.ending is None
        ):
            room = room_from_refusal(ending.message)
            if room is not None and request.get("max_tokens", 0) > room:
                ending = await self._ask(lease, request | {"max_tokens": room})
        if isinstance(ending, TurnError) and ending.code is ErrorCode.BAD_PROMPT:
            line = refusal_line(ending.message, facts.get("max_model_len"))
            return TurnError(ending.code, line)
        return ending

    async def _ask(self, lease: Lease, request: dict[str, Any]) -> Ending | Step:
        engine: asyncio.Future[tuple[Mmm, Any]] = self._loop.create_future()
        pieces = Pieces() if self._tools else None
        body = to_json(request)
        size = len(body)
        number = lease.cell.feed(body, self._sink(engine, pieces))
        del body  # the answer may take minutes, and a thousand of them hold a thousand prompts

        def cancel() -> None:
            self._halt.interrupt = _nothing
            lease.cell.cancel(number)
            nothing = (Mmm.FINISH, {"reason": "cancelled", "usage": None})
            self._halt.later(CANCEL_ANSWER, lambda: _resolve(engine, nothing))

        self._halt.interrupt = cancel
        kind, data = await engine
        self._halt.interrupt = _nothing
        self._usage = added(self._usage, data.get("usage"))
        if self._halt.ending is not None:
            return self._halt.ending
        if kind != Mmm.FINISH:
            return TurnError(ErrorCode(data["code"]), data["message"])
        step = self._judged(data["reason"], pieces)
        if step is None:
            return Finish(data["reason"])
        self._talk = self._talk.stepped(step, cell_id=lease.cell.cell_id, request=size)
        return step

    def _judged(self, reason: str, pieces: Pieces | None) -> Step | None:
        if pieces is None or self._tooling is None:
            return None
        return pieces.step(reason, self._tools, self._tooling.ids)

    def _sink(
        self, engine: asyncio.Future[tuple[Mmm, Any]], pieces: Pieces | None
    ) -> Callable[[Mmm, Any], None]:
        """Returns what takes the engine's events; a turn without tools keeps nothing of them."""
        halt, write = self._halt, self._reply.write
        tick = self._figures.ticker(resumed=self._asked - self._repeats > 1 or self._reply.started)

        def sink(kind: Mmm, data: Any) -> None:
            if kind <= Mmm.REASONING:
                if halt.ending is None:
                    tick()
                    write(kind, data)
            elif kind >= Mmm.FINISH and not engine.done():
                engine.set_result((kind, data))

        if pieces is None:
            return sink
        keep = pieces.add

        def keeping(kind: Mmm, data: Any) -> None:
            if kind < Mmm.FINISH and halt.ending is None:
                keep(kind, data)
            sink(kind, data)

        return keeping


def _resolve(future: asyncio.Future[tuple[Mmm, Any]], result: tuple[Mmm, Any]) -> None:
    if not future.done():
        future.set_result(result)


def _nothing() -> None:
    """What is interrupted while the turn does not wait."""
