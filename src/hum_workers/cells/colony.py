"""Colony: the nests of one bee, in the order of their eggs, and those that are on their way out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from hum_workers.cells.nest import Nest
from hum_workers.errors import ErrorCode, TurnError
from hum_workers.program import stop_times

log = structlog.get_logger()


class Colony:
    """Which nest serves which model. `nests` is the same list for as long as the bee lives."""

    def __init__(self, nests: Iterable[Nest]) -> None:
        self.nests = list(nests)
        self._loop = asyncio.get_running_loop()
        self._leaving: dict[Nest, asyncio.Task[None]] = {}
        self._by_model: dict[str, Nest] = {}
        self._index()

    @property
    def all(self) -> list[Nest]:
        """Those too whose egg is gone and whose turns still run."""
        return [*self.nests, *self._leaving]

    def serving(self, model: str) -> Nest:
        """Returns the nest that serves `model`; without a model, the first.

        Raises:
            TurnError: none does.
        """
        if not model:
            model = next(iter(self._by_model), "")
        nest = self._by_model.get(model)
        if nest is None and not self._by_model:
            raise TurnError(ErrorCode.BAD_PROMPT, "this bee has slices of models, and no model")
        if nest is None:
            known = ", ".join(self._by_model)
            raise TurnError(
                ErrorCode.BAD_PROMPT, f"no model '{model[:80]}' here; this bee has {known}"
            )
        return nest

    def advertised(self) -> list[str]:
        """Returns the ids of models that humd may send prompts for now."""
        return [model for nest in self.nests if nest.advertised for model in nest.models]

    def start(self) -> None:
        """Begins to raise what is raised without a prompt."""
        for nest in self.nests:
            _start(nest)

    def change(self, nests: Sequence[Nest]) -> None:
        """Takes these nests; new ones start, those that are missing leave after their turns."""
        before, self.nests[:] = list(self.nests), nests
        self._index()
        for nest in before:
            if nest not in self.nests:
                leaving = self._loop.create_task(self._leave(nest), name=f"leave-{nest.name}")
                self._leaving[nest] = leaving
        for nest in self.nests:
            if nest not in before:
                _start(nest)

    def kill(self) -> None:
        """Kills every cell at once; synchronous."""
        for nest in self.all:
            nest.kill()

    async def buried(self) -> None:
        """Returns when all cells are dead, or after some seconds."""
        for leaving in self._leaving.values():
            leaving.cancel()
        await asyncio.gather(*(nest.buried(stop_times.KILL) for nest in self.all))

    async def _leave(self, nest: Nest) -> None:
        nest.drain()
        await nest.unused(nest.limits.drain_timeout)
        await nest.stop(nest.limits.stop_grace, "its egg is gone")
        del self._leaving[nest]

    def _index(self) -> None:
        self._by_model = {model: nest for nest in self.nests for model in nest.models}


def _start(nest: Nest) -> None:
    if notice := nest.tools.notice():
        log.info("worker.tools.left_out", egg=nest.name, reason=notice)
    nest.start()
