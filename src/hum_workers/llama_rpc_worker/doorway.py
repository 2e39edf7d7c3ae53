"""The way to a slice's door: opens it now, or as soon as what is in the way has passed.

At boot the address may not be up yet, and a port may be held a moment longer: the bee then serves
without a door, and the door opens later. What can't pass ends the start.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator

import structlog

from hum_workers.cells.plan import backoff
from hum_workers.errors import UsageError
from hum_workers.llama_rpc_worker.door import Door
from hum_workers.llama_rpc_worker.trust import Trust

log = structlog.get_logger()

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
SAID_EACH = 20
"""Tries from one line of the log to the next; the first one is always said."""
_PASSES = frozenset((errno.EADDRINUSE, errno.EADDRNOTAVAIL))


class Doorway:
    """One door that is open, or tried again. `close` leaves neither port nor task behind."""

    def __init__(
        self,
        make: Callable[[Trust], Awaitable[Door]],
        opened: Callable[[Door], None],
        trust: Trust,
        pauses: Callable[[], Iterator[float]] = lambda: backoff(FIRST_PAUSE, LONGEST_PAUSE),
    ) -> None:
        """`make` listens and returns the door; `opened` is called with it, once."""
        self._make = make
        self._opened = opened
        self._trust = trust
        self._pauses = pauses
        self._door: Door | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int | None:
        """The port of the door; None while it is not open."""
        return None if self._door is None else self._door.port

    def believe(self, trust: Trust) -> None:
        """Lets in whom this trust knows from now on; others have to go."""
        self._trust = trust
        if self._door is not None:
            self._door.believe(trust)

    async def open(self) -> None:
        """Opens the door, or begins to try again.

        Raises:
            UsageError: it can't listen there, and never will.
        """
        try:
            self._keep(await self._make(self._trust))
        except UsageError as error:
            if not may_pass(error):
                raise
            again = self._again(str(error))
            self._task = asyncio.get_running_loop().create_task(again, name="doorway")

    async def close(self) -> None:
        """Closes the door and tries no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._door is not None:
            await self._door.close()

    def _keep(self, door: Door) -> None:
        self._door = door
        self._opened(door)

    async def _again(self, reason: str) -> None:
        for tries, pause in enumerate(self._pauses(), 1):
            say = log.debug if tries % SAID_EACH != 1 else log.warning
            say("worker.slice.door.waits", reason=reason, tries=tries, seconds=round(pause, 1))
            await asyncio.sleep(pause)
            try:
                self._keep(await self._make(self._trust))
            except UsageError as error:
                reason = str(error)
            else:
                return


def may_pass(error: UsageError) -> bool:
    """Returns whether what keeps a door from listening may be gone in a moment."""
    cause = error.__cause__
    if isinstance(cause, socket.gaierror):
        return cause.errno == socket.EAI_AGAIN
    if not isinstance(cause, OSError):
        return False
    # Where no address of a name could be had, asyncio says so without an errno.
    return cause.errno in _PASSES or (cause.errno is None and "could not bind" in str(cause))
