"""Checks: what keeps a slice out of a route, and a route from being whole (pure).

Each problem is one line that names the slice and the mend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hum_workers.llama_rpc_worker.facts import Layers, ModelFacts, Offer, SliceState
from hum_workers.llama_rpc_worker.shares import (
    MOST_SLICES,
    RouteWant,
    Share,
    gaps,
    named,
    plain,
    span,
    working,
)
from hum_workers.program.findings import amount

UNKNOWN = (0, 0, 0)


def layers_of(offer: Offer) -> Layers | None:
    """Returns the layers that an egg gives a slice: the coordinator's, or its own."""
    return offer.declared if offer.declared is not None else offer.facts.layers


def faults(offer: Offer, model: ModelFacts, want: RouteWant) -> Iterator[str]:
    """Yields what is wrong with a slice, whatever it is to hold."""
    facts, name = offer.facts, named(offer)
    if facts.fingerprint is not None and facts.fingerprint != model.fingerprint:
        yield (
            f"{name} is bound to the model {plain(facts.fingerprint)} and this one is "
            f"{model.fingerprint}: change its model.fingerprint or leave it out"
        )
    started = bool(facts.build.digest)  # else there is no build to compare, and its state says so
    if started and facts.build.commit != want.own.commit:
        yield (
            f"{name} has llama.cpp {plain(facts.build.commit)} and the coordinator "
            f"{plain(want.own.commit)}: install the same on both"
        )
    elif (
        started
        and UNKNOWN not in (facts.build.protocol, want.own.protocol)
        and (facts.build.protocol != want.own.protocol)
    ):
        yield (
            f"{name} speaks RPC {version(facts.build.protocol)} and the coordinator "
            f"{version(want.own.protocol)}: install the same llama.cpp on both"
        )
    match facts.state:
        case SliceState.LEASED if facts.holder != want.own_hid:
            yield (
                f"{name} is leased by {plain(facts.holder or 'another bee', 13)}: stop that "
                "coordinator or add another slice"
            )
        case SliceState.STARTING:
            yield f"{name} is starting: wait until its rpc-server answers"
        case SliceState.RECYCLING:
            yield f"{name} is being recycled after its last holder: wait until it is free"
        case SliceState.FAILED:
            yield f"{name} has failed: look into its bee's log, mend it and start it again"
        case _:
            pass
    yield from _range_faults(offer, model)


def _range_faults(offer: Offer, model: ModelFacts) -> Iterator[str]:
    bound, given, count = offer.facts.layers, offer.declared, len(model.layers)
    if bound and given and bound != given:
        yield (
            f"{named(offer)} is given layers {span(given)} here and bound to {span(bound)} by its "
            "own egg: make both the same"
        )
    layers = layers_of(offer)
    if layers is not None and not 0 <= layers[0] < layers[1] <= count:
        yield (
            f"{named(offer)} has layers {span(layers)}, which the model has not: give it a part of "
            f"0:{count}"
        )


def version(protocol: tuple[int, int, int]) -> str:
    """Returns a protocol as people write it: `7.0.0`."""
    return ".".join(map(str, protocol))


def twins(offers: Sequence[Offer]) -> Iterator[tuple[Offer, str]]:
    """Yields each slice that is there a second time, by address or by owner, and a line on it."""
    seen: dict[str, Offer] = {}
    for offer in offers:
        for key, what in ((offer.endpoint, "address"), (offer.facts.hid, "hid")):
            other = seen.setdefault(key, offer)
            if other is not offer:
                both = f"{named(offer)} has the {what} of {named(other)}"
                yield offer, f"{both}: each slice may be named once; remove one"
                break


def local_faults(model: ModelFacts, local: Layers) -> Iterator[str]:
    """Yields what is wrong with the coordinator's own layers."""
    first, end = local
    if first == end:
        return
    if not 0 <= first < end <= len(model.layers):
        yield f"[split] local is {span(local)}, which the model has not: 0:{len(model.layers)} is"
    elif first > 0:
        yield (
            f"[split] local is {span(local)}: layers of the coordinator are the first ones, as "
            "llama-server puts the output on the last device; begin at 0"
        )


def uncovered(
    held: Sequence[tuple[str, Layers]], count: int, missing: Sequence[Layers | None] = ()
) -> Iterator[str]:
    """Yields gaps and overlaps of ranges, each with the name of who holds it.

    `missing` are layers, None for any, of slices of which something else is said: layers that one
    of them would hold are no gap.
    """
    held = sorted((one for one in held if one[1][0] < one[1][1]), key=lambda one: one[1])
    for at, (name, layers) in enumerate(held):
        for other, theirs in held[at + 1 :]:
            if theirs[0] < layers[1]:
                both = theirs[0], min(layers[1], theirs[1])
                yield f"layers {span(both)} are held by {name} and by {other}: give them to one"
    told = [(0, count) if layers is None else layers for layers in missing]
    for gap in gaps([*(layers for _, layers in held), *told], count):
        before = [name for name, layers in held if layers[1] == gap[0]]
        after = [name for name, layers in held if layers[0] == gap[1]]
        sides = [f"after {name}" for name in before[:1]] + [f"before {name}" for name in after[:1]]
        where = f" ({' and '.join(sides)})" if sides else ""
        yield f"no slice holds layers {span(gap)}{where}: give them to one"


def too_many(shares: Sequence[Share]) -> Iterator[str]:
    if len(shares) > MOST_SLICES:
        yield (
            f"{len(shares)} slices are to hold layers, {named(shares[MOST_SLICES].offer)} among "
            f"them: llama-server takes {MOST_SLICES} at most; give more layers to fewer"
        )


def too_small(shares: Sequence[Share], model: ModelFacts, want: RouteWant) -> Iterator[str]:
    """Yields each slice whose share is larger than its memory."""
    beside = working(model, want)
    for one in shares:
        need = one.weights + one.kv + beside
        if need > one.offer.facts.memory:
            output = " and the output" if one.output else ""
            yield (
                f"{named(one.offer)} has {amount(one.offer.facts.memory)} and layers "
                f"{span(one.layers)}{output} need {amount(need)} ({amount(one.weights)} of "
                f"weights, {amount(one.kv)} of KV cache, {amount(beside)} to work): give it fewer "
                "layers or more memory, or lower model.ctx or model.parallel"
            )
