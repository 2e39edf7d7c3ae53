"""Turn: one prompt from its tone to its last tone, with exactly one ending.

A turn waits for its place behind earlier turns of its sid, then for a cell with a free slot, then
for the engine. `stop` ends it at any moment. This is the one place that turns exceptions into
tones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.frames import Mmm
from hum_workers.nest import Lease, Nest
from hum_workers.prompt import Prompt
from hum_workers.reply import Reply
from hum_workers.request import chat_request, refusal_line, room_from_refusal, to_json

log = structlog.get_logger()

CANCEL_ANSWER = 1.0
"""Seconds to wait for the tender's word on a cancelled turn; it only brings the usage."""


@dataclass(frozen=True)
class Finish:
    """An ending by `finish`: the engine's reason, or `cancelled`, and the engine's usage."""

    reason: str
    usage: Mapping[str, Any] | None = None


Ending = Finish | TurnError


class Turn:
    """One prompt being answered. `stop` and the sink are synchronous; `run` is its one task."""

    def __init__(
        self, sid: str, prompt: Prompt | None, nest: Nest, reply: Reply, *, now: float
    ) -> None:
        self.sid = sid
        self.prompt = prompt
        """What is asked; None for a turn that is stopped with a refusal before it runs."""
        self.reply = reply
        self._nest = nest
        self._arrived = now
        self._loop = asyncio.get_running_loop()
        self._ending: Ending | None = None
        self._waiting: asyncio.Future[Lease] | None = None
        self._engine: asyncio.Future[tuple[Mmm, Any]] | None = None
        self._cancel_engine: Callable[[], None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._figures = nest.figures.turn()
        reply.on_end = self._figures.ended

    def stop(self, ending: Ending) -> None:
        """Ends the turn as `ending` says, in the engine too; the first call wins."""
        if self._ending is not None or self.reply.ended:
            return
        self._ending = ending
        if self._cancel_engine is not None:
            self._cancel_engine()
        elif self._waiting is not None:
            self._waiting.cancel()

    def overflow(self) -> None:
        """Ends the turn because too much of its text waits for humd to come back."""
        self.reply.discard()
        self.stop(
            TurnError(
                ErrorCode.HUMD_LOST, "humd was away too long: more text waited than may be held"
            )
        )

    async def run(self, place: asyncio.Future[None] | None) -> None:
        """Answers the prompt. `place` resolves when no earlier turn of the sid is left."""
        try:
            ending = await self._live(place)
        except TurnError as error:
            ending = error
        except asyncio.CancelledError:
            if self._ending is None:
                self._say(TurnError(ErrorCode.SHUTTING_DOWN, "the bee was ended"))
                raise
            ending = self._ending
        except Exception:
            log.exception("worker.prompt.handle.failed", sid=self.sid)
            ending = TurnError(ErrorCode.WORKER_ERROR, "the bee failed on this prompt; see its log")
        finally:
            for timer in self._timers:
                timer.cancel()
        self._say(ending)

    def _say(self, ending: Ending) -> None:
        if isinstance(ending, TurnError):
            self.reply.fail(ending)
        else:
            self.reply.finish(ending.reason, ending.usage)

    async def _live(self, place: asyncio.Future[None] | None) -> Ending:
        limits = self._nest.limits
        waited = self._loop.call_at(self._arrived + limits.wait_timeout, self._waited_too_long)
        self._timers.append(waited)
        if place is not None:
            # Not interrupted by `stop`: an ending in the middle of the turn before would be taken
            # for that turn's own, since tones carry only the sid.
            await place
        if self._ending is not None:
            return self._ending
        self._waiting = self._nest.lease(self.reply.pulse)
        lease = await self._waiting
        self._waiting = None
        self._figures.admitted()
        waited.cancel()
        try:
            if self._ending is not None:
                return self._ending
            return await self._answer(lease, limits.turn_timeout)
        finally:
            lease.release()

    async def _answer(self, lease: Lease, turn_timeout: float) -> Ending:
        late = TurnError(
            ErrorCode.TURN_TIMEOUT, f"no end after {turn_timeout:g} s ([limits] turn_timeout)"
        )
        self._timers.append(self._loop.call_later(turn_timeout, self.stop, late))
        assert self.prompt is not None
        self.reply.announce(lease.cell.cell_id, self._nest.model)
        if self._ending is not None:  # too much waits for humd already: nothing for the engine
            return self._ending
        request = chat_request(
            self.prompt,
            model=self._nest.model,
            max_model_len=lease.cell.facts.get("max_model_len"),
            default_max_tokens=self._nest.default_max_tokens,
        )
        ending = await self._ask(lease, request)
        if isinstance(ending, TurnError) and not self.reply.started and self._ending is None:
            room = room_from_refusal(ending.message)
            if room is not None and request.get("max_tokens", 0) > room:
                ending = await self._ask(lease, request | {"max_tokens": room})
        if isinstance(ending, TurnError) and ending.code is ErrorCode.BAD_PROMPT:
            line = refusal_line(ending.message, lease.cell.facts.get("max_model_len"))
            return TurnError(ending.code, line, usage=ending.usage)
        return ending

    async def _ask(self, lease: Lease, request: dict[str, Any]) -> Ending:
        engine: asyncio.Future[tuple[Mmm, Any]] = self._loop.create_future()
        write = self.reply.write
        tick = self._figures.ticker(resumed=self.reply.started)

        def sink(kind: Mmm, data: Any) -> None:
            if kind <= Mmm.REASONING:
                if self._ending is None:
                    tick()
                    write(kind, data)
            elif kind >= Mmm.FINISH and not engine.done():
                engine.set_result((kind, data))

        number = lease.cell.feed(to_json(request), sink)

        def cancel() -> None:
            self._cancel_engine = None
            lease.cell.cancel(number)
            nothing = (Mmm.FINISH, {"reason": "cancelled", "usage": None})
            self._timers.append(self._loop.call_later(CANCEL_ANSWER, _resolve, engine, nothing))

        self._cancel_engine = cancel
        kind, data = await engine
        self._cancel_engine = None
        if self._ending is not None:
            return _with_usage(self._ending, data.get("usage"))
        if kind == Mmm.FINISH:
            return Finish(data["reason"], data["usage"])
        return TurnError(ErrorCode(data["code"]), data["message"], usage=data.get("usage"))

    def _waited_too_long(self) -> None:
        seconds = self._nest.limits.wait_timeout
        why = (
            self._nest.why_waiting() if self._waiting is not None else "earlier prompts of its sid"
        )
        message = f"waited {seconds:g} s for {self._nest.model} ([limits] wait_timeout): {why}"
        self.stop(TurnError(ErrorCode.NO_CAPACITY, message))


def _resolve(future: asyncio.Future[tuple[Mmm, Any]], result: tuple[Mmm, Any]) -> None:
    if not future.done():
        future.set_result(result)


def _with_usage(ending: Ending, usage: Mapping[str, Any] | None) -> Ending:
    """Returns the ending with what the engine had counted until then."""
    if usage is None:
        return ending
    if isinstance(ending, Finish):
        return replace(ending, usage=usage)
    return TurnError(ending.code, ending.message, subtype=ending.subtype, usage=usage)
