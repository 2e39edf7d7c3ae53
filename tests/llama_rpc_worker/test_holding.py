"""A route's slices, held together: real doors and links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from hum_workers.llama_rpc_worker.facts import SliceState
from hum_workers.llama_rpc_worker.gathering import Gathering, Known
from hum_workers.llama_rpc_worker.holding import Holding, NotHeld
from hum_workers.llama_rpc_worker.route import Route
from hum_workers.llama_rpc_worker.shares import Share
from hum_workers.llama_rpc_worker.slice_link import SliceLink
from hum_workers.thrum.identity import hid_of
from tests.llama_rpc_worker.doors import SLICE, Desk, Peer, a_link, linked, opened
from tests.llama_rpc_worker.routes import SMALL, WANT

LAYERS = 0, 2


@asynccontextmanager
async def gathered(*desks: Desk) -> AsyncIterator[Gathering]:
    """Yields a gathering of these slices' doors, each asked once."""
    async with AsyncExitStack() as stack:
        doors = [await stack.enter_async_context(opened(desk)) for desk in desks]

        def link(known: Known, lost: Callable[[str], None]) -> SliceLink:
            return a_link(known.port, life="new", on_lost=lost, on_cut=lost)

        known = [Known("127.0.0.1", door.port, hid_of(SLICE)) for door in doors]
        gathering = Gathering(lambda: known, link)
        await gathering.look()
        try:
            yield gathering
        finally:
            await gathering.close()


def route_over(gathering: Gathering) -> Route:
    """Returns a route with a share for each slice; nobody plans one here."""
    shares = tuple(Share(offer, LAYERS, False, 1, 1) for offer in gathering.offers)
    return Route(model=SMALL, want=WANT, shares=shares, local=(0, 0), head="local", why_head="said")


async def test_leases_of_an_earlier_life_are_ended_together() -> None:
    near, far = Desk(), Desk()
    async with gathered(near, far) as gathering:
        ports = [int(offer.endpoint.rpartition(":")[2]) for offer in gathering.offers]
        async with linked(ports[0], life="old") as one, linked(ports[1], life="old") as other:
            await one.lease(LAYERS, "model")
            await other.lease(LAYERS, "model")
            await gathering.look()
            with pytest.raises(NotHeld, match="its holder has been started anew"):
                await Holding.take(route_over(gathering), gathering, lambda reason: None)
        assert [desk.book.state for desk in (near, far)] == [SliceState.RECYCLING] * 2
        for desk in (near, far):
            desk.book.recycled()
        await gathering.look()
        holding = await Holding.take(route_over(gathering), gathering, lambda reason: None)
        assert [desk.book.state for desk in (near, far)] == [SliceState.LEASED] * 2
        await holding.release()


async def test_the_slice_that_was_asked_last_and_says_nothing_is_named() -> None:
    async with Peer() as near_rpc, Peer() as far_rpc:
        desks = Desk(near_rpc.address), Desk(far_rpc.address)
        async with gathered(*desks) as gathering:
            holding = await Holding.take(route_over(gathering), gathering, lambda reason: None)
            assert holding.silent() == ""
            ends = []
            for endpoint, rpc in zip(holding.endpoints, (near_rpc, far_rpc), strict=True):
                host, _, port = endpoint.rpartition(":")
                ours = await asyncio.open_connection(host, int(port))
                ours[1].write(b"ask")
                theirs = await rpc.accept()
                assert await theirs[0].readexactly(3) == b"ask"
                ends.append((ours, theirs))
            near, far = (f"slice near at {offer.endpoint}" for offer in gathering.offers)
            assert holding.silent() == f"{far} was asked last and has not answered"
            for (ours, theirs), silent in zip(reversed(ends), (near, ""), strict=True):
                theirs[1].write(b"answer")
                await ours[0].readexactly(6)
                assert holding.silent().startswith(silent)
            assert holding.silent() == ""
            for ours, _ in ends:
                ours[1].transport.abort()
            await holding.release()


async def test_a_line_of_llama_servers_names_slices_and_no_port_of_ours() -> None:
    async with gathered(Desk()) as gathering:
        holding = await Holding.take(route_over(gathering), gathering, lambda reason: None)
        [name] = (f"slice near at {offer.endpoint}" for offer in gathering.offers)
        line = f"a slice failed: Failed to connect to {holding.endpoints[0]}"
        assert holding.explain(line) == f"a slice failed: Failed to connect to {name}"
        crashed = "a slice failed: Remote RPC server crashed"
        assert holding.explain(crashed) == f"{crashed}, one of {name}"
        assert holding.explain("no room for KV cache") == "no room for KV cache"
        await holding.release()


async def test_a_round_that_is_wanted_begins_after_it_was_wanted() -> None:
    desk = Desk()
    async with gathered(desk) as gathering:
        running = asyncio.create_task(gathering.run())
        try:
            for state in (SliceState.STARTING, SliceState.FREE, SliceState.FAILED):
                desk.book.state = state
                await asyncio.wait_for(gathering.fresh(), 10)
                assert [offer.facts.state for offer in gathering.offers] == [state]
        finally:
            running.cancel()
            await asyncio.wait({running})
