"""Annex: what a kind of worker keeps beside the cells of a bee, such as a door or links to others.

A bee without one needs nothing of this. The annex lives from before the first hello until after the
last cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hum_workers.egg import bee_settings
from hum_workers.thrum.identity import Identity

if TYPE_CHECKING:
    from hum_workers.cells.nest import Nest
    from hum_workers.cells.plan import NestPlan, Raiser
    from hum_workers.cells.room import Room


@dataclass(frozen=True, kw_only=True)
class Home:
    """What an annex may know of its bee."""

    seed: bytes
    """The secret half of the bee's key; it never reaches a log."""
    hid: str
    state: Path
    """The folder of hum's state, where keys and `bees.json` lie."""
    changed: Callable[[], None]
    """Called when the hello would say something else now."""


class Annex(Protocol):
    """See the module."""

    def nest(self, egg: Any, plan: NestPlan, raiser: Raiser, room: Room | None) -> Nest | None:
        """Returns the nest of an egg that needs one of its own kind, else None."""

    def fixed(self, before: Sequence[Any], now: Sequence[Any]) -> Iterator[str]:
        """Yields the keys in which eggs differ and that only a restart of the bee can change."""

    def adopt(self, egg: Any, nest: Nest, raiser: Raiser) -> None:
        """Has the parts of a nest live by another egg; the nest itself adopts the raiser next."""

    def hello(self) -> Mapping[str, Any]:
        """Returns the fields that the hello has besides those of every worker."""

    async def open(self) -> None:
        """Begins.

        Raises:
            UsageError: an address in an egg can't be used.
        """

    async def close(self) -> None:
        """Ends; the cells are dead."""


class Lodging:
    """The annex of a program that is no bee under humd, with the key that it needs; or none."""

    def __init__(
        self,
        hive: str,
        make: Callable[[Home, Sequence[Any]], Annex] | None,
        eggs: Sequence[Any],
        state: Path,
    ) -> None:
        """Raises:
        IdentityError: the key is unusable, or a bee that runs has it.
        """
        self.annex: Annex | None = None
        self._identity: Identity | None = None
        if make is not None:
            self._identity = own = Identity.load(hive, bee_settings(eggs).name, state)
            home = Home(seed=own.seed, hid=own.hid, state=state, changed=lambda: None)
            self.annex = make(home, eggs)

    async def open(self) -> None:
        """See `Annex`."""
        if self.annex is not None:
            await self.annex.open()

    async def close(self) -> None:
        """See `Annex`; gives the key back."""
        if self.annex is not None:
            await self.annex.close()
        if self._identity is not None:
            self._identity.close()
