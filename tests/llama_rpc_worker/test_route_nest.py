"""The nest of a coordinator over real doors: whom it leases, whom it leaves out, what changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hum_workers import lifecycle
from hum_workers.cells.plan import NestPlan
from hum_workers.llama_rpc_worker import route_nest
from hum_workers.llama_rpc_worker.facts import Layers, SliceState
from hum_workers.llama_rpc_worker.gathering import Gathering
from hum_workers.llama_rpc_worker.lease import LeaseRefused
from hum_workers.llama_rpc_worker.route import Route, RouteError
from hum_workers.llama_rpc_worker.route_nest import RouteNest
from hum_workers.llama_rpc_worker.router import RouteTerms
from hum_workers.llama_rpc_worker.shares import Share
from tests.llama_rpc_worker.doors import Desk
from tests.llama_rpc_worker.routes import SMALL, WANT
from tests.llama_rpc_worker.test_holding import gathered
from tests.test_nest import Scripted, limits, until

WAIT = 20.0
LOADS = {"hang_at": "load"}


class Refuser(Desk):
    """Says that it is free, and gives nobody a lease."""

    asked = 0

    def lease(self, holder: str, layers: Layers, fingerprint: str, life: str) -> str:
        self.asked += 1
        raise LeaseRefused("not today")


class Raiser(Scripted):
    """Raises an engine that loads for ever, and notes by which route."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LOADS)
        self.route_flags: Sequence[str] = ()
        self.explain: Callable[[str], str] = lambda line: line


class FirstFree:
    """Puts the whole model on the first slice that is free, or ours."""

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self.read = 0

    async def refresh(self) -> None:
        self.read += 1

    def plan(self, without: Collection[str] = ()) -> Route:
        for offer in self._gathering.offers:
            usable = offer.facts.state in (SliceState.FREE, SliceState.LEASED)
            if usable and offer.facts.hid not in without:
                share = Share(offer, (0, len(SMALL.layers)), True, 1, 1)
                return Route(
                    model=SMALL,
                    want=WANT,
                    shares=(share,),
                    local=(0, 0),
                    head="last",
                    why_head="said",
                )
        raise RouteError(("no slice is free",))


@asynccontextmanager
async def nest(
    folder: Path, gathering: Gathering, *, on_prompt: bool = False
) -> AsyncIterator[tuple[RouteNest, Raiser, FirstFree]]:
    """A nest that was started over what the gathering sees."""
    lifecycle.become_subreaper()
    raiser, router = Raiser(folder), FirstFree(gathering)
    it = RouteNest(
        plan(on_prompt), raiser, gathering=gathering, router=router, terms=RouteTerms(hold_back=0)
    )
    gathering.changed = it.gathered
    running = asyncio.create_task(gathering.run())
    it.start()
    try:
        async with asyncio.timeout(WAIT):
            yield it, raiser, router
    finally:
        await it.stop(0, "the test is over")
        running.cancel()
        await asyncio.wait({running})


def plan(on_prompt: bool = False) -> NestPlan:
    return NestPlan(
        name="echo",
        models=["echo"],
        limits=limits(),
        on_prompt=on_prompt,
        default_max_tokens=None,
        start_slot=asyncio.Semaphore(1),
        on_change=lambda: None,
    )


def place(flags: Sequence[str]) -> str:
    return flags[list(flags).index("--rpc") + 1]


async def test_a_slice_that_refuses_though_it_is_free_is_withdrawn_with_its_model(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_nest, "WITHDRAW", 0.01)
    refuser = Refuser()
    async with gathered(refuser) as gathering:
        async with nest(short_dir, gathering, on_prompt=True) as (it, raiser, _):
            await until(lambda: it.advertised)
            waiting = it.lease()
            await until(lambda: not it.advertised)
            assert "is left out for 30 s, as it could not be leased" in it.why_incomplete[0]
            assert "slice near at 127.0.0.1" in it.why_incomplete[0]
            assert "the route is not complete" in it.why_waiting()
            await gathering.fresh()
            await gathering.fresh()
            assert (refuser.asked, raiser.raised, it.advertised) == (1, [], False)
            waiting.cancel()


async def test_after_a_change_of_its_egg_the_next_cell_gets_the_new_route(short_dir: Path) -> None:
    desk = Desk()
    async with gathered(desk) as gathering, nest(short_dir, gathering) as (it, raiser, router):
        await until(lambda: it.cell is not None and it.cell.mark)
        first = place(raiser.route_flags)
        other, read = Raiser(short_dir / "new"), router.read
        (short_dir / "new").mkdir()
        it.adopt(plan(), lambda lane: other, renew=True)
        await until(lambda: desk.book.state is SliceState.RECYCLING)
        desk.book.recycled()
        await until(lambda: other.raised)
        assert place(other.route_flags) == first
        assert router.read > read
        assert desk.book.state is SliceState.LEASED
        assert len(raiser.raised) == 1


async def test_a_change_in_place_keeps_cell_and_lease(short_dir: Path) -> None:
    desk = Desk()
    async with gathered(desk) as gathering, nest(short_dir, gathering) as (it, raiser, _):
        await until(lambda: it.cell is not None and it.cell.mark)
        other: Mapping[int, Raiser] = {0: Raiser(short_dir)}
        it.adopt(plan(), other.__getitem__, renew=False)
        await gathering.fresh()
        assert desk.book.state is SliceState.LEASED
        assert len(raiser.raised) == 1
        assert it.why_incomplete == ()
