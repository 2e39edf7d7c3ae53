"""A coordinator's link to a slice: its lease through good and bad days, and what is said."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import msgspec
import pytest

from hum_workers.errors import SliceError, SliceProblem
from hum_workers.llama_rpc_worker.facts import SliceFacts, SliceState
from hum_workers.thrum.identity import hid_of
from tests.llama_rpc_worker.doors import (
    ANN,
    BEN,
    SLICE,
    WAIT,
    Desk,
    Losses,
    Wire,
    a_link,
    linked,
    opened,
)


async def test_a_slice_says_what_it_is_and_how_far() -> None:
    desk = Desk()
    async with opened(desk) as door, linked(door.port) as link:
        assert await link.describe() == desk.facts() == link.facts
        assert link.hid == hid_of(SLICE)
        assert 0 < link.round_trip < WAIT


async def test_an_answer_that_can_not_be_read_is_told_and_the_next_one_is_a_new_chance() -> None:
    class Liar(Desk):
        lies = True

        def facts(self) -> SliceFacts:
            facts = super().facts()
            return msgspec.structs.replace(facts, memory=-1) if self.lies else facts

    desk = Liar()
    async with opened(desk) as door, linked(door.port) as link:
        with pytest.raises(SliceError, match="can't be understood: .*memory.*; install the same"):
            await link.describe()
        desk.lies = False
        async with asyncio.timeout(WAIT):
            while True:
                try:
                    await link.connect()
                    assert await link.describe() == desk.facts()
                    break
                except SliceError:  # the old connection is not gone yet
                    await asyncio.sleep(0)


async def test_a_lease_is_kept_while_it_is_held_and_given_back() -> None:
    desk, losses = Desk(), Losses()
    async with opened(desk) as door:
        async with linked(door.port, renew_every=0.01, on_lost=losses) as link:
            await link.lease((0, 4), "f00d")
            assert link.leased
            await desk.next_renewal()
            await desk.next_renewal()
            await link.release()
            assert not link.leased
            assert desk.book.state is SliceState.RECYCLING
        assert losses.reasons == []


async def test_a_link_that_is_closed_gives_its_lease_back() -> None:
    desk = Desk()
    async with opened(desk) as door:
        async with linked(door.port) as link:
            await link.lease((0, 4), "f00d")
        assert desk.book.state is SliceState.RECYCLING


async def test_a_slice_that_another_holds_is_refused_in_its_bees_words() -> None:
    async with opened(Desk(), ANN, BEN) as door:
        async with linked(door.port, ANN) as first, linked(door.port, BEN) as second:
            await first.lease((0, 4), "f00d")
            with pytest.raises(SliceError, match=f"can't be leased now: {hid_of(ANN)} holds it"):
                await second.lease((0, 4), "f00d")
            assert not second.leased


async def test_a_bee_that_was_started_anew_needs_not_wait_for_its_old_lease() -> None:
    desk = Desk()
    async with opened(desk) as door, linked(door.port, life="one") as old:
        await old.lease((0, 4), "f00d")
        async with linked(door.port, life="two") as new:
            with pytest.raises(SliceError, match="its holder has been started anew"):
                await new.lease((0, 4), "f00d")
            desk.book.recycled()
            await new.lease((0, 4), "f00d")


async def test_after_a_short_loss_the_lease_goes_on_with_the_same_token() -> None:
    desk, losses = Desk(), Losses()
    async with opened(desk) as door, Wire(door.port) as wire:
        async with linked(wire.port, renew_every=0.01, on_lost=losses) as link:
            await link.lease((0, 4), "f00d")
            lease = desk.book.lease
            await desk.next_renewal()
            wire.cut()
            wire.plugged = True
            await desk.next_renewal()
            await desk.next_renewal()
            assert desk.book.lease is lease
            assert await link.describe()
        assert losses.reasons == []


async def test_a_loss_that_lasts_longer_than_the_lease_is_said_once() -> None:
    losses = Losses()
    async with opened(Desk()) as door, Wire(door.port) as wire:
        async with linked(wire.port, renew_every=0.01, lease_time=0.3, on_lost=losses) as link:
            await link.lease((0, 4), "f00d")
            wire.cut()
            assert "no slice's door" in await losses.one()
            assert not link.leased
        assert len(losses.reasons) == 1


async def test_a_bee_that_is_dead_is_said_long_before_the_lease_is_over() -> None:
    losses = Losses()
    async with opened(Desk()) as door:
        async with linked(door.port, lease_time=3600, on_lost=losses) as link:
            await link.lease((0, 4), "f00d")
            await door.close()
            assert "nobody is at the door" in await losses.one()
            assert not link.leased


async def test_a_lease_that_ran_out_meanwhile_is_said() -> None:
    desk, losses = Desk(), Losses()
    async with opened(desk) as door:
        async with linked(door.port, renew_every=0.01, on_lost=losses) as link:
            await link.lease((0, 4), "f00d")
            desk.moved = 60
            assert "it was not renewed for 20 s" in await losses.one()


async def test_a_slice_that_fails_is_said_in_its_bees_words() -> None:
    desk, losses = Desk(), Losses()
    async with opened(desk) as door:
        async with linked(door.port, renew_every=0.01, on_lost=losses) as link:
            await link.lease((0, 4), "f00d")
            desk.book.failed("rpc-server ended with -6")
            assert "it has failed: rpc-server ended with -6" in await losses.one()


async def test_a_lost_connection_can_be_made_anew_without_a_lease() -> None:
    async with opened(Desk()) as door, Wire(door.port) as wire, linked(wire.port) as link:
        wire.cut()
        with pytest.raises(SliceError) as caught:
            await link.describe()
        assert caught.value.problem is SliceProblem.LOST
        wire.plugged = True
        await link.connect()
        assert await link.describe()


async def test_two_that_connect_at_once_get_one_connection() -> None:
    async with opened(Desk()) as door:
        link = a_link(door.port)
        await asyncio.gather(link.connect(), link.connect())
        assert await link.describe()
        assert len(door.visitors) == 1
        await link.close()


async def test_a_network_that_stalls_breaks_nothing() -> None:
    desk, losses, cuts = Desk(), Losses(), Losses()
    async with opened(desk) as door, Wire(door.port) as wire:
        async with linked(wire.port, renew_every=0.01, on_lost=losses, on_cut=cuts) as link:
            await link.lease((0, 4), "f00d")
            await desk.next_renewal()
            wire.stall.clear()
            with (
                patch("hum_workers.llama_rpc_worker.visit.ANSWER_TIME", 0.2),
                pytest.raises(SliceError, match="has not answered"),
            ):
                await link.describe()
            wire.stall.set()
            await desk.next_renewal()
            assert await link.describe()
        assert losses.reasons == cuts.reasons == []


async def test_a_link_leases_once() -> None:
    async with opened(Desk()) as door, linked(door.port) as link:
        await link.lease((0, 4), "f00d")
        with pytest.raises(RuntimeError, match="holds the lease"):
            await link.lease((0, 4), "f00d")
