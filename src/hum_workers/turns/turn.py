"""Turn: one prompt from its tone to its last tone, with exactly one ending.

A turn waits for its place behind earlier turns of its sid, for what it is asked where that comes in
two tones, and then answers. `stop` ends it at any moment. This is the one place that turns
exceptions into tones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from hum_workers.cells.nest import Nest
from hum_workers.errors import ErrorCode, TurnError
from hum_workers.turns.answer import Answer, Tooling
from hum_workers.turns.ending import Ending
from hum_workers.turns.halt import Halt
from hum_workers.turns.reply import Reply
from hum_workers.turns.talk import Talk

log = structlog.get_logger()

CODES = frozenset(code.value for code in ErrorCode)
Asked = tuple[Nest, Talk]
"""What a turn is asked, and by the cells of which egg it is answered."""


class Turn:
    """One prompt being answered. `stop` and the sink are synchronous; `run` is its one task."""

    def __init__(
        self,
        sid: str,
        asked: Talk | asyncio.Future[Asked] | None,
        nest: Nest,
        reply: Reply,
        *,
        now: float,
        tooling: Tooling | None = None,
    ) -> None:
        self.sid = sid
        self.reply = reply
        self._asked = asked
        """What is asked, at once or soon; None for a turn that is refused and never runs."""
        self._nest = nest
        self._arrived = now
        self._tooling = tooling
        self._loop = asyncio.get_running_loop()
        self._halt = Halt()
        self._waits_for_lease = False
        self._figures = nest.figures.turn()
        reply.on_end = self._ended

    def stop(self, ending: Ending) -> None:
        """Ends the turn as `ending` says, in the engine too; the first call wins."""
        if not self.reply.ended:
            self._halt.stop(ending)

    def refuse(self, error: TurnError) -> None:
        """Ends a turn that will not run."""
        if isinstance(self._asked, asyncio.Future):
            self._asked.cancel()
        self.reply.fail(error)

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
            ending = error.with_traceback(None)
        except asyncio.CancelledError:
            if self._halt.ending is None:
                self._say(TurnError(ErrorCode.SHUTTING_DOWN, "the bee was ended"))
                raise
            ending = self._halt.ending
        except Exception:
            log.exception("worker.prompt.handle.failed", sid=self.sid)
            ending = TurnError(ErrorCode.WORKER_ERROR, "the bee failed on this prompt; see its log")
        finally:
            self._halt.close()
            if isinstance(self._asked, asyncio.Future):
                self._asked.cancel()
        self._say(ending)

    def _ended(self, ending: str, usage: Mapping[str, Any] | None) -> None:
        self._figures.ended(ending, usage)
        if ending in CODES:
            # Without the message, which may quote the prompt.
            log.info("worker.turn.failed", sid=self.sid[:80], code=ending, model=self._nest.model)
        self._nest.quiet()

    def _say(self, ending: Ending) -> None:
        if isinstance(ending, TurnError):
            self.reply.fail(ending)
        else:
            self.reply.finish(ending.reason, ending.usage)

    async def _live(self, place: asyncio.Future[None] | None) -> Ending:
        deadline = self._arrived + self._nest.limits.wait_timeout - self._loop.time()
        waited = self._halt.after(deadline, self._waited_too_long)
        if place is not None:
            # Not interrupted by `stop`: an ending in the middle of the turn before would be taken
            # for that turn's own, since tones carry only the sid.
            await place
        if self._halt.ending is not None:
            return self._halt.ending
        asked = self._asked
        assert asked is not None
        if isinstance(asked, asyncio.Future):
            nest, talk = await self._halt.wait(asked)
        else:
            nest, talk = self._nest, asked
        self._asked, self._waits_for_lease = None, True
        answer = Answer(
            talk,
            nest=nest,
            reply=self.reply,
            halt=self._halt,
            figures=self._figures,
            tooling=self._tooling,
        )
        return await answer.run(waited)

    def _waited_too_long(self) -> TurnError:
        seconds = self._nest.limits.wait_timeout
        why = self._nest.why_waiting() if self._waits_for_lease else "earlier prompts of its sid"
        message = (
            f"waited {seconds:g} s for a slot of '{self._nest.model}' ([limits] wait_timeout): "
        )
        return TurnError(ErrorCode.NO_CAPACITY, message + why)
