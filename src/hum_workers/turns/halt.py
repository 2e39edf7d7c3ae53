"""Halt: whether a turn was told to end, and the one thing it waits for, so that it ends at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from hum_workers.errors import TurnError
from hum_workers.turns.ending import Ending

T = TypeVar("T")


class Halt:
    """The stop of one turn. Owns its timers; `close` ends them."""

    def __init__(self) -> None:
        self.ending: Ending | None = None
        """How the turn was told to end; the first word counts."""
        self.interrupt: Callable[[], object] = _nothing
        """Ends what the turn waits for; set by it while it waits."""
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []

    def stop(self, ending: Ending) -> None:
        """Tells the turn to end so."""
        if self.ending is None:
            self.ending = ending
            self.interrupt()

    def after(self, seconds: float, why: Callable[[], TurnError]) -> asyncio.TimerHandle:
        """Stops the turn after so many seconds, unless the timer is cancelled."""
        timer = self._loop.call_later(seconds, lambda: self.stop(why()))
        self._timers.append(timer)
        return timer

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Calls something after so many seconds, if the turn has not ended by then."""
        self._timers.append(self._loop.call_later(seconds, call))

    async def wait(self, future: asyncio.Future[T]) -> T:
        """Returns the result of a future, which a stop cancels.

        Raises:
            asyncio.CancelledError: the turn was told to end, or its task was cancelled.
        """
        self.interrupt = future.cancel
        if self.ending is not None:
            future.cancel()
        try:
            return await future
        finally:
            self.interrupt = _nothing

    def close(self) -> None:
        """Ends the timers."""
        for timer in self._timers:
            timer.cancel()


def _nothing() -> None:
    """What is interrupted while the turn does not wait."""
