"""Annex: what a kind of worker keeps beside the cells of a bee, such as a door or links to others.

A bee without one needs nothing of this. The annex lives from before the first hello until after the
last cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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

    def hello(self) -> Mapping[str, Any]:
        """Returns the fields that the hello has besides those of every worker."""

    async def open(self) -> None:
        """Begins.

        Raises:
            UsageError: an address in an egg can't be used.
        """

    async def close(self) -> None:
        """Ends; the cells are dead."""
