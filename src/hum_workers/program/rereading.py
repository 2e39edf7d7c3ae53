"""Rereading: SIGHUP, and the eggs are read again; only what they change is restarted.

One wrong egg, and nothing changes: its mistakes are logged. So is what only a restart of the bee
can change. A model that was withdrawn for good is tried again even if its egg is as it was: the
mistake may have been elsewhere.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from hum_workers.bee import Bee
from hum_workers.cells.nest import Nest
from hum_workers.egg import bee_settings
from hum_workers.egg.changes import Changes, changes
from hum_workers.errors import EggError
from hum_workers.program.assembly import NestMaker

log = structlog.get_logger()

KEPT = "nothing has changed"


class Rereader:
    """Holds a bee to its eggs. `read` gives them as they are now; it may block."""

    def __init__(
        self, bee: Bee, maker: NestMaker, eggs: Sequence[Any], read: Callable[[], Sequence[Any]]
    ) -> None:
        self._bee = bee
        self._maker = maker
        self._eggs = eggs
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._task = self._loop.create_task(self._serve(), name="reread")
        self._loop.add_signal_handler(signal.SIGHUP, self._asked.set)

    def close(self) -> None:
        """Reads no more; SIGHUP is ignored from now on."""
        self._loop.add_signal_handler(signal.SIGHUP, _nothing)
        self._task.cancel()

    async def _serve(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                self._apply(await asyncio.to_thread(self._read))
            except EggError as error:
                for mistake in error.mistakes:
                    log.error("worker.eggs.mistake", about=str(mistake))
                log.error("worker.eggs.refused", mistakes=len(error.mistakes), reason=KEPT)
            except Exception:
                log.exception("worker.eggs.failed", reason=KEPT)

    def _apply(self, eggs: Sequence[Any]) -> None:
        found = changes(self._eggs, eggs)
        if keys := [*found.process, *self._maker.fixed(self._eggs, eggs)]:
            reason = f"{', '.join(keys)} can change with a restart of the bee only; {KEPT}"
            log.error("worker.eggs.refused", keys=keys, reason=reason)
            return
        for egg in eggs:
            for warning in egg.warnings:
                log.warning("worker.egg.warning", about=str(warning))
        log.info(
            "worker.eggs.reread",
            new=found.new,
            gone=found.gone,
            cells=found.cells,
            others=found.others,
        )
        self._resize(eggs)
        before = {nest.name: nest for nest in self._bee.nests}
        self._bee.change([self._nest(egg, before.get(egg.name), found) for egg in eggs])
        self._eggs = eggs

    def _nest(self, egg: Any, nest: Nest | None, found: Changes) -> Nest:
        if nest is None:
            return self._maker.nest(egg)
        if egg.name in found.cells or egg.name in found.others or nest.failure is not None:
            renew = egg.name in found.cells
            self._maker.adopt(egg, nest, renew=renew)
        return nest

    def _resize(self, eggs: Sequence[Any]) -> None:
        places = bee_settings(eggs).max_procs or len(eggs)
        if self._maker.room is not None:
            self._maker.room.resize(places)
        if self._maker.spares is not None:
            self._maker.spares.resize(places - len(eggs))


def _nothing() -> None:
    """What SIGHUP does when nothing is read any more."""
