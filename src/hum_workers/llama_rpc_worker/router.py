"""What the nest of a coordinator needs: a plan of its route, and a raiser that is told of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hum_workers.cells.blame import Diagnosis
from hum_workers.cells.plan import Raiser
from hum_workers.llama_rpc_worker.route import Route
from hum_workers.spec import CellSpec


@dataclass(frozen=True, kw_only=True)
class RouteTerms:
    """What the egg says of its route. Seconds."""

    hold_back: float = 30.0
    """After a loss, in which the same slices may come back before others are taken."""
    canary: float = 60.0
    """Without a prompt, before one of our own."""
    unencrypted: bool = False
    """llama-server may go to an rpc-server past its door."""


class Router(Protocol):
    """Plans a route from what the gathering sees now."""

    async def refresh(self) -> None:
        """Reads the model's header, if it is another one by now.

        Raises:
            HumError: it can't be read, or the engine is not there.
        """

    def plan(self, without: Collection[str] = ()) -> Route:
        """Returns the route; the slices with these hids are not there.

        Raises:
            RouteError: not every layer has a holder, or one is not fit.
        """


class RoutedRaiser(Raiser, Protocol):
    """A raiser of llama-server that is told its route first."""

    route_flags: Sequence[str]
    explain: Callable[[str], str]
    """Puts the slices' names into a line of llama-server's."""

    def spec(self, cell_id: str, away: Mapping[str, str]) -> CellSpec:
        """See `Raiser`."""

    def diagnose(self, lines: Sequence[str]) -> Diagnosis:
        """See `Raiser`."""
