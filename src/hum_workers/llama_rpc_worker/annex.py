"""What a llama-rpc-worker keeps beside its cells: the doors of its slices, the links to others'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from hum_workers.cells.nest import Nest
from hum_workers.cells.plan import NestPlan, Raiser
from hum_workers.cells.room import Room
from hum_workers.errors import UsageError
from hum_workers.llama_rpc_worker import bees_file
from hum_workers.llama_rpc_worker.door import Door
from hum_workers.llama_rpc_worker.doorway import Doorway
from hum_workers.llama_rpc_worker.gathering import Gathering, Known
from hum_workers.llama_rpc_worker.raiser import LlamaRaiser
from hum_workers.llama_rpc_worker.route_nest import RouteNest
from hum_workers.llama_rpc_worker.routing import Routing
from hum_workers.llama_rpc_worker.slice_desk import Desk
from hum_workers.llama_rpc_worker.slice_link import SliceLink
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
        self._gatherings: list[Gathering] = []
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
        gathering = Gathering(partial(known, egg, self._home), partial(link, egg, self._home))
        routing = Routing(egg, gathering, raiser, self._home.hid)
        nest = RouteNest(
            plan,
            raiser,
            gathering=gathering,
            router=routing,
            room=room,
            hold_back=egg.split.hold_back,
            canary=egg.split.canary,
        )
        gathering.changed = nest.gathered
        self._gatherings.append(gathering)
        if self._tasks:  # an egg that came later
            self._run(gathering)
        return nest

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
        for gathering in self._gatherings:
            self._run(gathering)

    async def close(self) -> None:
        """See `Annex`."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(gathering.close() for gathering in self._gatherings))
        if self._doorway is not None:
            await self._doorway.close()

    async def _open_door(self, egg: LlamaEgg, desk: Desk) -> None:
        trust = Trust(egg.rpc.coordinators, self._home.state)

        def opened(door: Door) -> None:
            desk.end_streams = door.end_streams
            log.info("worker.slice.door", host=egg.rpc.listen[0], port=door.port, trust=str(trust))
            self._home.changed()

        self._doorway = Doorway(
            lambda: Door.open(self._home.seed, egg.rpc.listen, trust, desk), opened
        )
        await self._doorway.open()

    def _slice(
        self, egg: LlamaEgg, plan: NestPlan, raiser: LlamaRaiser, room: Room | None
    ) -> SliceNest:
        desk = Desk(
            hid=self._home.hid,
            name=egg.name,
            build=raiser.build,
            memory=partial(usable, egg.rpc.memory, egg.limits.memory),
            layers=egg.rpc.layers,
            fingerprint=egg.model.fingerprint,
            direct=egg.rpc.private_network,
            changed=self._home.changed,
            now=asyncio.get_running_loop().time,
        )
        self._desk = egg, desk
        return SliceNest(plan, raiser, desk=desk, room=room)

    def _run(self, gathering: Gathering) -> None:
        task = asyncio.get_running_loop().create_task(gathering.run(), name="gathering")
        self._tasks.append(task)


def known(egg: LlamaEgg, home: Home) -> Iterator[Known]:
    """Yields the doors that a coordinator's egg names, and those that its humd hints at."""
    named, discover = set(), False
    for one in egg.slices:
        discover = discover or one.discover
        if one.endpoint is not None:
            host, port = one.endpoint
            named.add((host, port))
            yield Known(host, port, one.hid, one.layers)
    if not discover:
        return
    wanted = {one.hid: one.layers for one in egg.slices if one.hid and one.endpoint is None}
    for host, port, hid in bees_file.slices(home.state / "hum" / "bees.json"):
        if (host, port) not in named and (not wanted or hid in wanted):
            yield Known(host, port, hid, wanted.get(hid))


def link(egg: LlamaEgg, home: Home, known: Known, on_lost: Callable[[str], None]) -> SliceLink:
    """Returns a link to one door; nothing is connected yet."""
    named = [one.hid for one in egg.slices if one.hid]
    trust = Trust(named, home.state)
    door = known.host, known.port
    return SliceLink(home.seed, door, known.hid, trust, on_lost=on_lost, on_cut=on_lost)
