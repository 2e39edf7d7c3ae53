"""Tool desk: where a bee's tool calls and their results meet.

A result goes to the turn that is held for it, or opens a turn with the conversation that is parked
for it, or is late. Owns the calls that are out and the prompts and results that wait for each
other; the parked conversations are the nests'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from hum_workers.cells.nest import Nest
from hum_workers.errors import ErrorCode, TurnError
from hum_workers.media.pollen import Pollen
from hum_workers.tools.call_id import CallIds, Owner
from hum_workers.tools.calls import Calls
from hum_workers.tools.line import ToolLine
from hum_workers.tools.openings import Openings
from hum_workers.tools.result import read_result
from hum_workers.turns.answer import Tooling
from hum_workers.turns.talk import Talk
from hum_workers.turns.turn import Asked

log = structlog.get_logger()


class Begin(Protocol):
    """Begins a turn on a sid, or refuses it."""

    def __call__(
        self, sid: str, asked: Talk | asyncio.Future[Asked] | TurnError, nest: Nest
    ) -> None: ...


class ToolDesk:
    """The desk of one bee. `line` gives the connection as it is now."""

    def __init__(
        self,
        *,
        nests: Sequence[Nest],
        ids: CallIds,
        line: Callable[[], ToolLine],
        begin: Begin,
        busy: Callable[[str], bool],
    ) -> None:
        self._openings = Openings()
        self._nests = nests
        self._ids = ids
        self._line = line
        self._begin = begin
        self._busy = busy
        self._calls = Calls()
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def parked(self) -> int:
        """Calls of askers that wait for their result."""
        return sum(len(nest.parking) for nest in self._nests)

    def tooling(self, asked: object) -> Tooling | None:
        """Returns what a turn that begins now needs to call tools; None where it has none."""
        if isinstance(asked, TurnError) or (isinstance(asked, Talk) and not asked.prompt.tools):
            return None
        return Tooling(ids=self._ids, calls=self._calls, line=self._line(), park=self._park)

    def hears_bare(self, sid: str) -> bool:
        """Takes a prompt without text that comes with a result; False when none can come."""
        if self._openings.takes_prompt(sid):
            self._openings.prompt(sid, ())
            return True
        whole = self._openings.bare(sid) if self.parked else None
        if whole is not None:
            self._begin(sid, whole, self._nests[0])
        return whole is not None

    def hears_words(
        self, sid: str, messages: Sequence[Mapping[str, Any]], media: Sequence[Pollen] = ()
    ) -> bool:
        """Takes a prompt that comes right behind a result; it goes into the resumed turn."""
        if not self._openings.takes_prompt(sid):
            return False
        self._openings.prompt(sid, messages, media)
        return True

    def result(self, tone: Mapping[str, Any]) -> None:
        """Takes a `tool-result`, or an `error` that answers a call."""
        call_id, sid = tone.get("callId"), tone.get("sid")
        if not isinstance(call_id, str) or self._calls.answer(call_id, read_result(tone)):
            return
        sid = sid if isinstance(sid, str) else ""
        for nest in self._nests:
            parked = nest.parking.take(call_id)
            if parked is not None:
                talk = parked.talk.answered({call_id: read_result(tone).text})
                self._resume(sid or parked.sid, nest, talk)
                return
        self._unexpected(call_id, sid, is_result=tone.get("chi") == "tool-result")

    def forget(self, sid: str) -> None:
        """Drops what is parked for a sid: its asker has moved on or wants no more."""
        for nest in self._nests:
            nest.parking.forget(sid)

    def lost(self) -> None:
        """The connection went: humd has forgotten who called, so no result can come."""
        self._calls.lost()
        for nest in self._nests:
            nest.parking.clear()

    def close(self) -> None:
        """Ends the desk's timer."""
        if self._sweep is not None:
            self._sweep.cancel()

    def _resume(self, sid: str, nest: Nest, talk: Talk) -> None:
        whole = self._openings.result(sid, (nest, talk))
        if whole is not None:
            self._begin(sid, whole, nest)

    def _unexpected(self, call_id: str, sid: str, *, is_result: bool) -> None:
        owner = self._ids.owner(call_id)
        # A forager's late answer is no asker's business, and an error is never answered by one.
        told = owner is Owner.ASKER and is_result and bool(sid) and not self._busy(sid)
        log.info(
            "worker.tool.result_unexpected",
            call=call_id[:80],
            sid=sid[:80],
            reason="late" if owner else "no call of ours",
        )
        if told:
            text = "this tool call is parked no more: it is too old, or its conversation went on"
            self._begin(sid, TurnError(ErrorCode.TOOL_CALL_EXPIRED, text), self._nests[0])

    def _park(self, nest: Nest, call_id: str, sid: str, talk: Talk) -> None:
        gone = nest.parking.park(call_id, sid, talk)
        if gone:
            log.info("worker.tool.parked_dropped", egg=nest.name, count=gone, parked=self.parked)
        if self._sweep is None:
            self._sweep_later()

    def _sweep_later(self) -> None:
        """Looks again when the oldest conversation is due, so that an idle bee holds none."""
        due = [nest.parking.due() for nest in self._nests]
        waits = [seconds for seconds in due if seconds is not None]
        self._sweep = self._loop.call_later(min(waits), self._swept) if waits else None

    def _swept(self) -> None:
        for nest in self._nests:
            if gone := nest.parking.expire():
                log.info("worker.tool.parked_expired", egg=nest.name, count=gone)
        self._sweep_later()
