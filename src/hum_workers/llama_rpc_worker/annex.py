"""What a llama-rpc-worker keeps beside its cells: the doors of its slices, the links to others'."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from hum_workers.cells.nest import Nest
from hum_workers.cells.plan import NestPlan, Raiser
from hum_workers.cells.room import Room
from hum_workers.errors import UsageError
from hum_workers.llama_rpc_worker import bees_file, known_doors
from hum_workers.llama_rpc_worker.door import Door
from hum_workers.llama_rpc_worker.doorway import Doorway
from hum_workers.llama_rpc_worker.gathering import Gathering
from hum_workers.llama_rpc_worker.raiser import LlamaRaiser
from hum_workers.llama_rpc_worker.route_nest import RouteNest
from hum_workers.llama_rpc_worker.router import RouteTerms
from hum_workers.llama_rpc_worker.routing import Routing
from hum_workers.llama_rpc_worker.slice_desk import Desk, Terms
from hum_workers.llama_rpc_worker.slice_memory import usable
from hum_workers.llama_rpc_worker.slice_nest import SliceNest
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.program.annex import Home

if TYPE_CHECKING:
    from hum_workers.llama_rpc_worker.egg import LlamaEgg

log = structlog.get_logger()


class LlamaAnnex:
    """An `Annex`: doors for slices, gatherings for coordinators."""

    def __init__(self, home: Home, eggs: Sequence[LlamaEgg]) -> None:
        """Raises:
        UsageError: more slices than one; a slice is known by its bee's hid.
        """
        self._home = home
        self._desk: tuple[LlamaEgg, Desk] | None = None
        self._doorway: Doorway | None = None
        self._routes: dict[RouteNest, tuple[Gathering, Routing]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        slices = [egg for egg in eggs if egg.cell.role == "slice"]
        if len(slices) > 1:
            raise UsageError(
                f"{slices[1].source}: a second slice in one bee: start it as a bee of its own, "
                "with a bee.name of its own"
            )

    def nest(self, egg: LlamaEgg, plan: NestPlan, raiser: Raiser, room: Room | None) -> Nest | None:
        """See `Annex`; a coordinator whose egg names no slice has nothing to gather."""
        assert isinstance(raiser, LlamaRaiser)
        if egg.cell.role == "slice":
            return self._slice(egg, plan, raiser, room)
        if not egg.slices:
            return None
        gathering = known_doors.gathering(egg, self._home)
        routing = Routing(egg, gathering, raiser, self._home.hid)
        nest = RouteNest(
            plan,
            raiser,
            gathering=gathering,
            router=routing,
            room=room,
            terms=_route_terms(egg),
        )
        gathering.changed = nest.gathered
        self._routes[nest] = gathering, routing
        if self._tasks:  # an egg that came later
            self._run(gathering)
        return nest

    def fixed(self, before: Sequence[LlamaEgg], now: Sequence[LlamaEgg]) -> Iterator[str]:
        """See `Annex`: which is the slice, where its door is, whether there are others'."""
        old = {egg.name: egg for egg in before}
        kept = [(old[egg.name], egg) for egg in now if egg.name in old]
        if _slices(before) != _slices(now):
            yield "cell.role"
        if any(one.cell.role == "slice" and one.rpc.listen != it.rpc.listen for one, it in kept):
            yield "rpc.listen"
        if any(bool(one.slices) != bool(it.slices) for one, it in kept):
            yield "slices"

    def adopt(self, egg: LlamaEgg, nest: Nest, raiser: Raiser) -> None:
        """See `Annex`."""
        assert isinstance(raiser, LlamaRaiser)
        if isinstance(nest, RouteNest):
            gathering, routing = self._routes[nest]
            gathering.adopt(known_doors.gathering(egg, self._home))
            routing.adopt(egg, raiser)
            nest.terms = _route_terms(egg)
        elif self._desk is not None and isinstance(nest, SliceNest):
            desk = self._desk[1]
            self._desk = egg, desk
            desk.adopt(_lent(egg))
            if self._doorway is not None:
                self._doorway.believe(Trust(egg.rpc.coordinators, self._home.state))

    def hello(self) -> Mapping[str, Any]:
        """See `Annex`: where the door is, once it is open, and what lies behind it."""
        if self._desk is None or self._doorway is None or self._doorway.port is None:
            return {}
        egg, desk = self._desk
        bind = {"host": egg.rpc.listen[0], "port": self._doorway.port, "scheme": bees_file.SCHEME}
        return {"bind": bind, "provides": desk.provides()}

    async def open(self) -> None:
        """See `Annex`."""
        if self._desk is not None:
            await self._open_door(*self._desk)
        for gathering, _ in self._routes.values():
            self._run(gathering)

    async def close(self) -> None:
        """See `Annex`."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(gathering.close() for gathering, _ in self._routes.values()))
        if self._doorway is not None:
            await self._doorway.close()

    async def _open_door(self, egg: LlamaEgg, desk: Desk) -> None:
        home = self._home

        def opened(door: Door) -> None:
            desk.end_streams, desk.take_leave = door.end_streams, door.take_leave
            trust = door.trust
            log.info("worker.slice.door", host=egg.rpc.listen[0], port=door.port, trust=str(trust))
            self._home.changed()

        self._doorway = Doorway(
            lambda trust: Door.open(home.seed, egg.rpc.listen, trust, desk),
            opened,
            Trust(egg.rpc.coordinators, home.state),
        )
        await self._doorway.open()

    def _slice(
        self, egg: LlamaEgg, plan: NestPlan, raiser: LlamaRaiser, room: Room | None
    ) -> SliceNest:
        desk = Desk(
            hid=self._home.hid,
            name=egg.name,
            terms=_lent(egg),
            changed=self._home.changed,
            now=asyncio.get_running_loop().time,
        )
        self._desk = egg, desk
        return SliceNest(plan, raiser, desk=desk, room=room)

    def _run(self, gathering: Gathering) -> None:
        task = asyncio.get_running_loop().create_task(gathering.run(), name="gathering")
        self._tasks.append(task)


def _slices(eggs: Sequence[LlamaEgg]) -> list[str]:
    return [egg.name for egg in eggs if egg.cell.role == "slice"]


def _lent(egg: LlamaEgg) -> Terms:
    return Terms(
        memory=partial(usable, egg.rpc.memory, egg.limits.memory),
        layers=egg.rpc.layers,
        fingerprint=egg.model.fingerprint,
        direct=egg.rpc.private_network,
    )


def _route_terms(egg: LlamaEgg) -> RouteTerms:
    return RouteTerms(
        hold_back=egg.split.hold_back,
        canary=egg.split.canary,
        unencrypted=egg.rpc.private_network,
    )
