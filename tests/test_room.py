"""Which cell goes, and who gets its place: the policy, and the room with tenants that count."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from hum_workers.cells.cell import Cell
from hum_workers.cells.eviction import Holder, victim
from hum_workers.cells.room import Room


@pytest.mark.parametrize(
    ("idle", "expected"),
    [
        ({}, None),
        ({"a": None, "b": None}, None),
        ({"a": 3.0, "b": 1.0, "c": None}, "b"),
        ({"b": 1.0, "a": 1.0}, "a"),
    ],
)
def test_the_least_recently_used_idle_cell_goes(
    idle: dict[str, float | None], expected: str | None
) -> None:
    assert victim(Holder(name=n, idle_since=since) for n, since in idle.items()) == expected


class Tenant:
    """An egg that is asked for once, and whose cell is idle, or not, as the test says."""

    def __init__(self, room: Room, name: str) -> None:
        self.name = name
        self.idle_since: float | None = None
        self.asked = self.wanted = True
        self.engaged = "1 prompts run"
        self.went = 0
        self.heard: list[str] = []
        self.room = room

    def asks(self) -> asyncio.Future[bool]:
        return self.room.enter(self)

    def make_room(self) -> Cell:
        self.went += 1
        self.idle_since = None
        return cast(Cell, self)

    def hears(self, kind: str, cell: Cell) -> None:
        self.heard.append(kind)

    def rests(self, since: float) -> None:
        self.asked = self.wanted = False
        self.idle_since = since
        self.room.stir()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_cell_goes_only_for_another_that_gets_the_place_when_it_is_dead() -> None:
    room = Room(2)
    a, b, c = (Tenant(room, name) for name in "abc")
    assert await a.asks()
    assert await b.asks()
    b.rests(1.0)
    a.rests(2.0)
    assert (a.went, b.went) == (0, 0)
    asked = c.asks()
    await turns()
    assert (a.went, b.went, c.heard) == (0, 1, ["cell-evicted"])
    assert room.waits(c)
    assert not asked.done()
    room.stir()
    assert (a.went, b.went) == (0, 1), "one is enough"
    room.leave(b)
    assert await asked
    assert not room.waits(c)


async def test_while_all_are_busy_it_waits_and_the_first_that_rests_makes_room() -> None:
    room = Room(1)
    a, b, c = (Tenant(room, name) for name in "abc")
    assert await a.asks()
    second, third = b.asks(), c.asks()
    await turns()
    assert a.went == 0
    assert room.why(b) == "all cells of [bee] max_procs = 1 are in use (a: 1 prompts run)"
    assert room.why(c).endswith("in use (a: 1 prompts run), and 1 models are before it")
    a.rests(1.0)
    assert a.went == 1
    room.leave(a)
    assert await second
    await turns()
    assert not third.done()
    b.rests(2.0)
    room.leave(b)
    assert await third


async def test_an_egg_that_nobody_asks_for_any_more_leaves_the_line() -> None:
    room = Room(1)
    a, b, c = (Tenant(room, name) for name in "abc")
    assert await a.asks()
    second, third = b.asks(), c.asks()
    await turns()
    b.asked = b.wanted = False
    room.stir()
    assert await second is False
    a.rests(1.0)
    assert a.went == 1, "for the one behind it"
    room.leave(a)
    assert await third


async def test_one_whose_wait_was_cancelled_takes_no_place() -> None:
    room = Room(1)
    a, b, c = (Tenant(room, name) for name in "abc")
    assert await a.asks()
    second, third = b.asks(), c.asks()
    second.cancel()
    room.leave(a)
    assert await third


async def test_a_place_that_is_left_twice_is_given_once() -> None:
    room = Room(1)
    a, b, c = (Tenant(room, name) for name in "abc")
    assert await a.asks()
    second, third = b.asks(), c.asks()
    await turns()
    room.leave(a)
    room.leave(a)
    assert await second
    await turns()
    assert not third.done()
    room.give_up(c)
    assert await third is False


async def test_for_one_that_no_turn_asks_for_nobody_goes() -> None:
    room = Room(1)
    a, b = (Tenant(room, name) for name in "ab")
    assert await a.asks()
    b.asked = False
    second = b.asks()
    a.rests(1.0)
    assert a.went == 0
    room.resize(2)
    assert await second
