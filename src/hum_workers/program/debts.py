"""Debts: the endings that an earlier bee with this identity did not live to say.

They are said after the first hello and before anything is advertised: a sid may be asked again at
once, and an error that comes late would end the new turn. Nothing waits for ever: without humd's
echo the bee advertises after a while all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.program.journal import Journal
from hum_workers.thrum.pacer import Pacer
from hum_workers.turns.reply import Reply

log = structlog.get_logger()

PATIENCE = 5.0
"""Seconds from the first hello in which humd should have read all of them."""


class Debts:
    """What is owed. `open` until humd has read it or has had its time; then `on_settled`, once."""

    def __init__(self, journal: Journal, pacer: Pacer, on_settled: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_settled = on_settled
        self._journal = journal
        self._left = {number for number, _ in journal.owed}
        self._timer: asyncio.TimerHandle | None = None
        self.open = bool(self._left)
        if self.open:
            log.warning("worker.journal.owed", turns=len(self._left))
        text = "the bee was restarted while this prompt was open, it did not end; ask again"
        error = TurnError(ErrorCode.BEE_RESTARTED, text)
        for number, sid in journal.owed:
            Reply(sid, pacer.outbox(sid, _nothing, partial(self._told, number))).fail(error)
        journal.owed.clear()

    def connected(self) -> None:
        """humd is there: the time it has begins, at the first call."""
        if self.open and self._timer is None:
            self._timer = self._loop.call_later(PATIENCE, self._settle)

    def close(self) -> None:
        """Ends the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _told(self, number: int) -> None:
        self._journal.end(number)
        self._left.discard(number)
        if not self._left:
            self._settle()

    def _settle(self) -> None:
        self.close()
        if self.open:
            self.open = False
            log.info("worker.journal.settled", unread=len(self._left))
            self._on_settled()


def _nothing() -> None:
    """What an ending alone can't cause: an overflow."""
