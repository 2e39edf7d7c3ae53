"""Leases: slots of cells that turns have, and the line of those that wait for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from hum_workers.cells.cell import Cell
from hum_workers.errors import TurnError

Hear = Callable[[str, str, int], None]
"""Takes an event in the life of a cell: its kind (thrum, section 6), the cell's id, its pid."""


@dataclass(frozen=True)
class Waiter:
    """A turn in line. `sid` is whose it is, if known."""

    future: asyncio.Future[Lease]
    hear: Hear
    sid: str


class Lease:
    """One slot of a ready cell; `release` gives it back, once."""

    def __init__(self, cell: Cell, waiter: Waiter, give_back: Callable[[Lease], None]) -> None:
        self.cell = cell
        self.hear = waiter.hear
        self.sid = waiter.sid
        self._give_back = give_back
        self._held = True

    def release(self) -> None:
        """Gives the slot to the next turn that waits."""
        if self._held:
            self._held = False
            self._give_back(self)


class Line:
    """First come, first served; turns that had a slot before stand ahead of those that had none.

    `on_left` is called when a turn that waited gives up.
    """

    def __init__(self, on_left: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_left = on_left
        self._ahead: set[asyncio.Future[Lease]] = set()
        self._queue: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def join(self, hear: Hear, sid: str, *, ahead: bool) -> asyncio.Future[Lease]:
        """Returns a future of a slot; cancel it to leave."""
        future: asyncio.Future[Lease] = self._loop.create_future()
        waiter = Waiter(future, hear, sid)
        if ahead:
            self._queue.insert(len(self._ahead), waiter)
            self._ahead.add(future)
        else:
            self._queue.append(waiter)
        future.add_done_callback(self._done)
        return future

    def take(self) -> Waiter | None:
        """Returns the first that still waits; it is in line no more."""
        while self._queue:
            waiter = self._queue.popleft()
            self._ahead.discard(waiter.future)
            if not waiter.future.done():
                return waiter
        return None

    def hearers(self, most: int) -> list[Hear]:
        """Returns how to tell those who are next."""
        return [waiter.hear for waiter in islice(self._queue, most)]

    def refuse(self, error: TurnError) -> None:
        """Sends all of them away."""
        queue, self._queue = self._queue, deque()
        self._ahead.clear()
        for waiter in queue:
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def _done(self, future: asyncio.Future[Lease]) -> None:
        self._ahead.discard(future)
        if not future.cancelled():
            return
        for waiter in self._queue:
            if waiter.future is future:
                self._queue.remove(waiter)
                break
        self._on_left()
