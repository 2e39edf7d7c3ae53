"""Calls that foragers run while their turns are held: who waits for which result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.tools.result import Result

MOST = 4096
"""Calls of all turns that may be out at once."""


class Held:
    """The calls of one step. `done` resolves with the results, by callId, when all are there."""

    def __init__(self, call_ids: Iterable[str], heard: Callable[[str, Result], None]) -> None:
        self.done: asyncio.Future[dict[str, Result]] = asyncio.get_running_loop().create_future()
        self.open = dict.fromkeys(call_ids)
        """Calls without a result, in order."""
        self._heard = heard
        self._results: dict[str, Result] = {}

    def answer(self, call_id: str, result: Result) -> None:
        """Takes one result; it is told at once."""
        del self.open[call_id]
        self._results[call_id] = result
        self._heard(call_id, result)
        if not self.open and not self.done.done():
            self.done.set_result(self._results)


class Calls:
    """All calls that are out, by callId."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def open(self, call_ids: Iterable[str], heard: Callable[[str, Result], None]) -> Held:
        """Begins to wait for the results of a step; `close` must follow.

        Raises:
            TurnError: `no_capacity`, when too many calls are out.
        """
        held = Held(call_ids, heard)
        if len(self._held) + len(held.open) > self._most:
            raise TurnError(
                ErrorCode.NO_CAPACITY, f"{len(self._held)} tool calls of foragers are out already"
            )
        self._held.update(dict.fromkeys(held.open, held))
        return held

    def close(self, held: Held) -> None:
        """Forgets what is still out of a step: a later result is late."""
        for call_id in held.open:
            self._held.pop(call_id, None)

    def answer(self, call_id: str, result: Result) -> bool:
        """Gives a result to who waits for it; False when nobody does."""
        held = self._held.pop(call_id, None)
        if held is not None:
            held.answer(call_id, result)
        return held is not None

    def lost(self) -> None:
        """The connection went, and with it humd's memory of who called: every step fails."""
        held, self._held = set(self._held.values()), {}
        for one in held:
            if not one.done.done():
                one.done.set_exception(
                    TurnError(
                        ErrorCode.HUMD_LOST, "humd was lost while a tool ran; its result is too"
                    )
                )
