"""Room: the cells that a bee may have at once, when its eggs are more than that.

An egg enters before it raises its cell and leaves when that is dead. While there is no place it
waits in line, and the least recently used idle cell is asked to go (`eviction`). Nothing here
waits for a cell that is busy: a place is given whenever one comes free.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from hum_workers.cells.cell import Cell
from hum_workers.cells.eviction import Holder, victim


class Tenant(Protocol):
    """An egg's nest, as the room sees it."""

    name: str

    @property
    def idle_since(self) -> float | None:
        """When its ready cell was last used; None: it may not be evicted."""

    @property
    def asked(self) -> bool:
        """Whether a turn waits for its cell, so that another's may have to go."""

    @property
    def wanted(self) -> bool:
        """Whether it still wants a place, with or without a turn."""

    @property
    def engaged(self) -> str:
        """What its cell does now, in a few words."""

    def make_room(self) -> Cell:
        """Ends its idle cell for another egg's, and returns it; it leaves when that is dead."""

    def hears(self, kind: str, cell: Cell) -> None:
        """Hears what happens to a cell of another egg for its sake."""


class Room:
    """`places` cells for whoever enters, first come, first served."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._loop = asyncio.get_running_loop()
        self._holders: dict[str, Tenant] = {}
        self._going: set[str] = set()
        """Holders that were asked to make room."""
        self._line: dict[Tenant, asyncio.Future[bool]] = {}

    def resize(self, places: int) -> None:
        """Has so many places from now on; cells above that go when they are idle and wanted."""
        self.places = places
        self.stir()

    def enter(self, tenant: Tenant) -> asyncio.Future[bool]:
        """Returns a future: True with a place, False when it is not wanted any more."""
        place: asyncio.Future[bool] = self._loop.create_future()
        if len(self._holders) < self.places and not self._line:
            self._holders[tenant.name] = tenant
            place.set_result(True)
        else:
            self._line[tenant] = place
            self.stir()
        return place

    def leave(self, tenant: Tenant) -> None:
        """Gives the place back, if it has one; its cell is dead."""
        if self._holders.get(tenant.name) is tenant:
            del self._holders[tenant.name]
            self._going.discard(tenant.name)
            self.stir()

    def give_up(self, tenant: Tenant) -> None:
        """Takes a tenant out of the line."""
        if (place := self._line.pop(tenant, None)) is not None and not place.done():
            place.set_result(False)

    def waits(self, tenant: Tenant) -> bool:
        """Whether a tenant stands in line."""
        return tenant in self._line

    def why(self, tenant: Tenant) -> str:
        """Returns in a few words why a tenant in line has no place."""
        held = ", ".join(f"{name}: {held.engaged}" for name, held in self._holders.items())
        ahead = list(self._line).index(tenant)
        line = f", and {ahead} models are before it" if ahead else ""
        return f"all cells of [bee] max_procs = {self.places} are in use ({held}){line}"

    def stir(self) -> None:
        """Hands out places that are free and asks as many cells to go as are still wanted."""
        for tenant in [t for t in self._line if not t.wanted]:
            self.give_up(tenant)
        while self._line and len(self._holders) < self.places:
            tenant, place = next(iter(self._line.items()))
            del self._line[tenant]
            if not place.done():
                self._holders[tenant.name] = tenant
                place.set_result(True)
        asking = [tenant for tenant in self._line if tenant.asked]
        while len(self._going) < len(asking):
            name = victim(
                Holder(name=name, idle_since=held.idle_since)
                for name, held in self._holders.items()
                if name not in self._going
            )
            if name is None:
                return
            self._going.add(name)
            asking[len(self._going) - 1].hears("cell-evicted", self._holders[name].make_room())
