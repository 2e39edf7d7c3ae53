"""The route that a coordinator had last, and which of its slices are waited for (pure).

Whoever is quicker to be recycled must not take what the others have held.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from hum_workers.llama_rpc_worker.facts import Offer, SliceState
from hum_workers.llama_rpc_worker.route import Route
from hum_workers.llama_rpc_worker.shares import named


class LastRoute:
    """Empty until a route has begun. `out` are the hids of slices that are not to be used now."""

    def __init__(self) -> None:
        self.slices: Mapping[str, str] = {}
        """Hid to name."""
        self.other_egg = False
        """The next route is another egg's: slices that are not there need not be wanted by it."""
        self._ended = -math.inf

    def began(self, route: Route) -> None:
        """This one is held now."""
        self.slices = {one.offer.facts.hid: named(one.offer) for one in route.shares}
        self.other_egg = False

    def ended(self, now: float) -> None:
        """It is given back."""
        self._ended = now

    def holds_back(self, now: float, seconds: float) -> bool:
        """Says whether its slices may still come back."""
        return now < self._ended + seconds

    def away(self, offers: Sequence[Offer], out: Collection[str]) -> list[str]:
        """Returns the names of those that can't be had now."""
        states = {one.facts.hid: one.facts.state for one in offers}
        return [
            name
            for hid, name in self.slices.items()
            if hid not in out
            and states.get(hid) is not SliceState.FREE
            and (hid in states or not self.other_egg)
        ]

    def gone(self, offers: Sequence[Offer], out: Collection[str]) -> list[str]:
        """Returns a line for each that no longer says anything."""
        here = {one.facts.hid for one in offers} | set(out)
        return [
            f"{name}, of the last route, does not answer: start its bee or mend the link"
            for hid, name in self.slices.items()
            if hid not in here and not self.other_egg
        ]
