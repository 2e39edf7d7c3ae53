"""A one-token prompt now and then while nobody asks: it alone finds a slice that is dead or frozen.

llama-server's health page says 200 over a route that is gone; the next prompt would find out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from hum_workers.cells.cell import Cell
from hum_workers.frames import Mmm

log = structlog.get_logger()

PERIOD = 60.0
"""Seconds of silence before each."""
PATIENCE = 15.0
"""Seconds for its answer: a few tokens over the slowest link that anybody would use."""


class IdleCanary:
    """Asks one cell at a time. `condemn` gets the reason for which it must end."""

    def __init__(
        self,
        condemn: Callable[[str], None],
        *,
        period: float = PERIOD,
        patience: float = PATIENCE,
    ) -> None:
        self._condemn = condemn
        self.period = period
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, cell: Cell, model: str, busy: Callable[[], bool]) -> None:
        """Watches this cell from now on, while it is not `busy`."""
        self.close()
        body = msgspec.json.encode(
            {
                "model": model,
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 1,
                "temperature": 0,
                "stream": True,
            }
        )
        self._later(self.period, lambda: self._ask(cell, body, busy))

    def close(self) -> None:
        """Watches nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, call)

    def _ask(self, cell: Cell, body: bytes, busy: Callable[[], bool]) -> None:
        def again() -> None:
            self._ask(cell, body, busy)

        if not cell.is_ready:
            return
        if busy():
            self._later(self.period, again)
            return

        def heard(kind: Mmm, data: Any) -> None:
            if kind not in (Mmm.FINISH, Mmm.ERROR):
                return
            self.close()
            if kind == Mmm.ERROR and cell.is_ready:
                self._condemn(f"a prompt of our own, while it was idle, failed: {data['message']}")
            else:
                self._later(self.period, again)

        def late() -> None:
            self._condemn(
                f"no answer for {self._patience:g} s to a prompt of our own, while it was idle"
            )

        self._later(self._patience, late)
        cell.feed(body, heard)
