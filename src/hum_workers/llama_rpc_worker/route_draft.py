"""A route that is being made: slices sorted out, layers given, everything checked (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hum_workers.llama_rpc_worker import route_checks as checks
from hum_workers.llama_rpc_worker.facts import Absent, Layers, ModelFacts, Offer
from hum_workers.llama_rpc_worker.route_split import Room, split
from hum_workers.llama_rpc_worker.shares import (
    MOST_SLICES,
    Head,
    RouteWant,
    Share,
    capacity,
    gaps,
    kv_of,
    named,
    plain,
    share,
    span,
    weights_of,
    working,
)
from hum_workers.program.findings import amount

NO_LAYERS: Layers = (0, 0)
MOST_NAMED = 5
"""Slices that one line names."""
LOGIT = 4
"""Bytes of the value that a slice with the output sends back for each token of the vocabulary."""


@dataclass
class Draft:
    """See the module; `problems` is empty when it is a route."""

    model: ModelFacts
    want: RouteWant
    local: Layers = NO_LAYERS
    problems: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A line for each reason why a slice is not used although it is there."""
    _unfit: list[Offer] = field(default_factory=list)
    """Slices that would hold layers, were it not for what is said of them."""
    _held: list[tuple[Offer, Layers]] = field(default_factory=list)
    _free: list[Offer] = field(default_factory=list)
    """Slices that may hold any layers."""
    _short: list[Layers] = field(default_factory=list)
    """Layers that the free slices have no room for."""

    @property
    def all_local(self) -> bool:
        return self.local == (0, len(self.model.layers))

    def stay_local(self) -> None:
        """Gives the coordinator its own layers."""
        local = self.want.local or NO_LAYERS
        wrong = list(checks.local_faults(self.model, local))
        self.problems += wrong
        self.local = NO_LAYERS if wrong or local[0] == local[1] else local

    def sort_out(self, offers: Sequence[Offer]) -> None:
        """Tells who has layers, who may have any, and who is not fit."""
        doubled = {id(offer): line for offer, line in checks.twins(offers)}
        for offer in offers:
            lines = list(checks.faults(offer, self.model, self.want))
            lines += [doubled[id(offer)]] if id(offer) in doubled else []
            named_here = self.want.policy == "declared" and offer.declared is not None
            (self.problems if named_here else self.left_out).extend(lines)
            if not lines or named_here:
                self._place(offer)
            else:
                self._unfit.append(offer)

    def _place(self, offer: Offer) -> None:
        layers = checks.layers_of(offer)
        if layers is None and self.want.policy == "by-memory":
            self._free.append(offer)
        elif layers is None:
            self.left_out.append(
                f"{named(offer)} holds nothing: [split] policy is declared and no egg gives it "
                "layers"
            )
        elif 0 <= layers[0] < layers[1] <= len(self.model.layers):
            self._held.append((offer, layers))

    def fill(self) -> None:
        """Gives the layers that nobody holds to the slices that may have any."""
        held = [self.local, *(layers for _, layers in self._held)]
        for gap in gaps(held, len(self.model.layers)):
            rooms = [(offer, capacity(self.model, self.want, offer)) for offer in self._free]
            sizes = self._sizes(gap)
            found = split(gap[0], sizes, rooms, MOST_SLICES - len(self._held))
            if found is not None:
                self._held += found
                taken = {id(offer) for offer, _ in found}
                self._free = [offer for offer in self._free if id(offer) not in taken]
            elif rooms:
                self._short.append(gap)
                self.problems.append(self._no_room(gap, sum(sizes), rooms))
        if not self.problems:
            self.left_out += [
                f"{named(offer)} is not used: fewer slices hold the model" for offer in self._free
            ]

    def _sizes(self, gap: Layers) -> list[int]:
        """Bytes that each layer of a run takes where it is."""
        each = [(n, n + 1) for n in range(*gap)]
        sizes = [weights_of(self.model, n) + kv_of(self.model, self.want, n) for n in each]
        if gap[1] == len(self.model.layers) and self.head()[0] == "last":
            sizes[-1] += self.model.output
        return sizes

    def _no_room(self, gap: Layers, need: int, rooms: Sequence[Room]) -> str:
        largest = sorted(rooms, key=lambda room: -room[1])
        some = ", ".join(
            f"{named(offer)} with {amount(offer.facts.memory)}" for offer, _ in largest[:MOST_NAMED]
        )
        more = f" and {len(rooms) - MOST_NAMED} more" if len(rooms) > MOST_NAMED else ""
        beside = amount(working(self.model, self.want))
        return (
            f"layers {span(gap)} need {amount(need)} and {beside} to work in each slice, more than "
            f"{some}{more} have: add a slice, raise its rpc.memory, or lower model.ctx or "
            "model.parallel"
        )

    def check(self, offers: Sequence[Offer], absent: Sequence[Absent] = ()) -> None:
        """Finds what is missing, doubled or too small."""
        shares = self.shares()
        if not offers and not absent and not self.all_local:
            self.problems.append("no slice answers: start one, or name its endpoint in [[slices]]")
        else:
            held = [(named(one.offer), one.layers) for one in shares]
            held += [("others", gap) for gap in self._short]
            held.append(("the coordinator", self.local))
            missing = [one.layers for one in absent] + self._unfit_layers()
            self.problems += checks.uncovered(held, len(self.model.layers), missing)
        self.problems += checks.too_many(shares)
        self.problems += checks.too_small(shares, self.model, self.want)
        need, memory = self._local_need(self.head()[0]), self.want.local_memory
        if memory is not None and need > memory:
            self.problems.append(
                f"the coordinator has {amount(memory)} and its own part needs {amount(need)}: give "
                'it fewer layers in [split] local, set head = "last", or give it more memory'
            )

    @property
    def whole(self) -> bool:
        """Whether every layer has a holder."""
        held = [self.local, *(layers for _, layers in self._held)]
        return not gaps(held, len(self.model.layers))

    def _unfit_layers(self) -> list[Layers | None]:
        """Layers that the slices which are not fit would hold; None: any."""
        would = [checks.layers_of(offer) for offer in self._unfit]
        return [one for one in would if one is not None or self.want.policy == "by-memory"]

    def shares(self, *, headed: bool = True) -> tuple[Share, ...]:
        """Returns what each slice holds, in the order of layers; `headed`: with the output."""
        count, last = len(self.model.layers), headed and self.head()[0] == "last"
        return tuple(
            share(self.model, self.want, offer, layers, last and layers[1] == count)
            for offer, layers in sorted(self._held, key=lambda one: one[1])
        )

    def _local_need(self, head: Head) -> int:
        """Bytes that the coordinator's own part takes."""
        weights = weights_of(self.model, self.local) + kv_of(self.model, self.want, self.local)
        output = self.model.output if head == "local" else 0
        return weights + output + (working(self.model, self.want) if weights + output else 0)

    def head(self) -> tuple[Head, str]:
        """Returns where the output layer is to be, and why.

        A slice that holds it sends four bytes back for each token of the vocabulary with each token
        of the answer; otherwise only a hidden state comes.
        """
        back = f"{LOGIT * self.model.vocabulary:,} bytes"
        if self.all_local:
            return "local", "local, as all layers are"
        if self.want.head is not None:
            return self.want.head, f"{self.want.head}, as [split] head says"
        memory, need = self.want.local_memory, self._local_need("local")
        if memory is not None and memory < need:
            return "last", (
                f"last, as the coordinator has {amount(memory)} and needs {amount(need)} for it; "
                f"{back} come back for each token"
            )
        return "local", f"local, so that {back} less come back from the last slice for each token"

    def notes(self) -> Iterator[str]:
        """Yields what people may want to know of a route that is whole."""
        for one in self.shares():
            digest = one.offer.facts.build.digest
            if digest != self.want.own.digest:
                yield (
                    f"{named(one.offer)} runs another binary of the same llama.cpp "
                    f"({plain(digest)}, here {self.want.own.digest})"
                )
        if self.want.alone:
            yield "no slice is used, as the egg names none in [[slices]]"
        elif self.all_local:
            yield "no slice is used, as [split] local gives the coordinator all layers"
        yield from self.left_out
