"""Routing: what a coordinator's egg, its model and the slices that answer make together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

import psutil

from hum_workers.errors import EngineError
from hum_workers.llama_rpc_worker import command
from hum_workers.llama_rpc_worker.facts import Build, ModelFacts
from hum_workers.llama_rpc_worker.gathering import Gathering
from hum_workers.llama_rpc_worker.raiser import LlamaRaiser
from hum_workers.llama_rpc_worker.route import Route, RouteWant, plan

if TYPE_CHECKING:
    from hum_workers.llama_rpc_worker.egg import LlamaEgg


class Routing:
    """Plans routes for one egg."""

    def __init__(self, egg: LlamaEgg, gathering: Gathering, raiser: LlamaRaiser, hid: str) -> None:
        self._egg = egg
        self._gathering = gathering
        self._raiser = raiser
        self._hid = hid
        self._model: ModelFacts | None = None
        self._own: Build | None = None
        self._batch = command.CPU_BATCH

    def adopt(self, egg: LlamaEgg, raiser: LlamaRaiser) -> None:
        """Plans for another egg, as soon as `refresh` has been."""
        self._egg, self._raiser = egg, raiser

    async def refresh(self) -> None:
        """See `router.Router`."""
        binaries = await asyncio.to_thread(self._raiser.binaries)
        self._own = binaries.build
        self._batch = self._raiser.batch or command.batch_for(binaries)
        path = self._egg.model.path
        assert path is not None
        try:
            path.stat()
        except OSError as error:
            raise EngineError(f"[model] path: {path} can't be read: {error.strerror}") from error
        self._model = await asyncio.to_thread(self._raiser.headers.facts, path)

    def plan(self, without: Collection[str] = ()) -> Route:
        """Returns the route over what the gathering sees now, once `refresh` has been.

        Slices whose hids are in `without` are not there.

        Raises:
            RouteError: it is not complete; one line for each reason.
        """
        egg = self._egg
        assert self._model is not None
        assert self._own is not None
        want = RouteWant(
            policy=egg.split.policy,
            # Without slices named or looked for, it is a server like any other.
            local=egg.split.local if egg.slices else (0, len(self._model.layers)),
            alone=not egg.slices,
            head=egg.split.head,
            ctx=egg.model.ctx,
            parallel=egg.model.parallel,
            batch=self._batch,
            own=self._own,
            own_hid=self._hid,
            local_memory=egg.limits.memory or psutil.virtual_memory().available,
        )
        offers = [one for one in self._gathering.offers if one.facts.hid not in without]
        return plan(self._model, offers, want, self._gathering.absent)
