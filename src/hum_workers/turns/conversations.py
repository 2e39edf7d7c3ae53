"""Conversations: which turns each sid has, in the order in which they came.

Tones carry only the sid, so two turns of one sid must not overlap: the next begins when the one
before has ended. Owns a task for each turn; a sid without turns is forgotten.
"""

from __future__ import annotations

import asyncio
from collections import deque

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.turns.ending import Ending
from hum_workers.turns.turn import Turn

MIB = 1024 * 1024
MOST_WEIGHT = 512 * MIB
"""Characters of all prompts that run or wait; one alone may always have what a line holds."""


class Conversations:
    """All turns of a bee that have not ended."""

    def __init__(self, *, most_weight: int = MOST_WEIGHT) -> None:
        self._most_weight = most_weight
        self._lines: dict[str, deque[tuple[Turn, asyncio.Future[None] | None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._weight = 0
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._tasks)

    def has(self, sid: str) -> bool:
        """Whether a turn of the sid runs or waits."""
        return sid in self._lines

    def add(self, turn: Turn, *, max_waiting: int, weight: int = 0) -> None:
        """Runs the turn when its sid is free; refuses it when `max_waiting` wait there already,
        or when all prompts together would hold too much; `weight` is about its characters.

        A refusal needs no place in the line: an outbox holds it until those before it have ended.
        """
        line = self._lines.get(turn.sid)
        waiting = len(line) - 1 if line else -1
        if waiting >= max_waiting:
            refusal = TurnError(
                ErrorCode.NO_CAPACITY,
                f"{max_waiting} prompts wait on this sid already ([limits] max_waiting_per_sid)",
            )
            turn.refuse(refusal)
            return
        if self._weight and self._weight + weight > self._most_weight:
            refusal = TurnError(
                ErrorCode.NO_CAPACITY,
                f"{len(self._tasks)} prompts hold {self._weight // MIB} MiB already, and "
                f"{self._most_weight // MIB} is the most; ask again later",
            )
            turn.refuse(refusal)
            return
        place: asyncio.Future[None] | None = None
        if line is None:
            line = self._lines[turn.sid] = deque()
        else:
            place = self._loop.create_future()
        line.append((turn, place))
        self._weight += weight
        task = self._loop.create_task(self._run(turn, place, line), name=f"turn-{turn.sid[:40]}")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, weight))

    def stop(self, sid: str, ending: Ending) -> None:
        """Ends the running turn of the sid and all that wait behind it."""
        for turn, _ in tuple(self._lines.get(sid, ())):
            turn.stop(ending)

    def stop_all(self, ending: Ending) -> None:
        """Ends every turn."""
        for sid in tuple(self._lines):
            self.stop(sid, ending)

    async def ended(self, timeout: float) -> bool:
        """Returns whether every turn has ended within `timeout` seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)
        return not self._tasks

    async def close(self) -> None:
        """Cancels what is left; each turn still says its ending."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None], weight: int) -> None:
        self._tasks.discard(task)
        self._weight -= weight

    async def _run(
        self,
        turn: Turn,
        place: asyncio.Future[None] | None,
        line: deque[tuple[Turn, asyncio.Future[None] | None]],
    ) -> None:
        try:
            await turn.run(place)
        finally:
            line.remove((turn, place))
            if not line:
                self._lines.pop(turn.sid, None)
            else:
                _, following = line[0]
                if following is not None and not following.done():
                    following.set_result(None)
