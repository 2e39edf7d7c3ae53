"""Routes: which slice holds which layers of a model, proven whole before anything is loaded (pure).

`plan` returns a route in which every layer and the output have exactly one holder, with memory
enough, of the same llama.cpp and free to be leased; or it raises all reasons why there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hum_workers.errors import EngineError
from hum_workers.llama_rpc_worker.facts import Absent, Layers, ModelFacts, Offer
from hum_workers.llama_rpc_worker.route_draft import Draft
from hum_workers.llama_rpc_worker.route_map import draw
from hum_workers.llama_rpc_worker.shares import Head, RouteWant, Share

__all__ = ["Route", "RouteError", "RouteWant", "Share", "plan"]


class RouteError(EngineError):
    """There is no route. `problems` are sentences; `map` shows what is there, as lines."""

    def __init__(self, problems: tuple[str, ...], map: tuple[str, ...] = ()) -> None:
        super().__init__(problems)
        self.problems = problems
        self.map = map

    def __str__(self) -> str:
        return "; ".join(self.problems)

    def lines(self) -> list[str]:
        """Returns the map for people, and below it what keeps it from being a route."""
        return [*self.map, *(f"problem: {problem}" for problem in self.problems)]


@dataclass(frozen=True, kw_only=True)
class Route:
    """Who holds what. `shares` are in the order of layers, which is that of devices too."""

    model: ModelFacts
    want: RouteWant
    shares: tuple[Share, ...]
    local: Layers
    """Layers of the coordinator, the first ones of the model; `(0, 0)` for none."""
    head: Head
    """Where the output layer is: on the last slice or with the coordinator."""
    why_head: str
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """That of the model."""
        return self.model.fingerprint

    def lines(self) -> list[str]:
        """Returns the map for people."""
        table = draw(self.model, self.want, self.shares, self.local, self.head)
        return [*table, f"head: {self.why_head}", *(f"note: {note}" for note in self.notes)]


def plan(
    model: ModelFacts, offers: Sequence[Offer], want: RouteWant, absent: Sequence[Absent] = ()
) -> Route:
    """Returns the route over these slices; `absent` are others that would have been wanted.

    With the policy `declared` each slice holds what an egg gives it. With `by-memory` those that no
    egg gives layers fill what is left, as `route_split` says: as few as hold it, the nearest first.
    A slice that is not fit spoils a declared route if the coordinator's own egg gives it layers;
    else it is left out, with a note.

    Raises:
        RouteError: not every layer has one holder that is fit for it.
    """
    draft = Draft(model, want)
    draft.stay_local()
    if not draft.all_local:
        draft.sort_out(offers)
        if want.policy == "by-memory":
            draft.fill()
    found = len(draft.problems)
    draft.check(offers, absent)
    if draft.problems or not draft.whole:
        reasons = [one.reason for one in absent]
        problems = (*draft.problems[:found], *reasons, *draft.problems[found:], *draft.left_out)
        used = {id(share.offer) for share in draft.shares()}
        unused = [offer for offer in offers if id(offer) not in used]
        shares = draft.shares(headed=False)
        raise RouteError(
            problems, tuple(draw(model, want, shares, draft.local, None, unused=unused))
        )
    head, why_head = draft.head()
    return Route(
        model=model,
        want=want,
        shares=draft.shares(),
        local=draft.local,
        head=head,
        why_head=why_head,
        notes=tuple(draft.notes()),
    )
