"""The map of a route, as lines for people (pure): a line a slice, the coordinator's, the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hum_workers.llama_rpc_worker.facts import Build, Layers, ModelFacts, Offer
from hum_workers.llama_rpc_worker.route_checks import UNKNOWN, version
from hum_workers.llama_rpc_worker.shares import (
    Head,
    RouteWant,
    Share,
    kv_of,
    plain,
    span,
    weights_of,
)
from hum_workers.program.findings import amount

OWNER = 13
"""Characters of a hid that people tell bees apart by."""
TITLES = (
    "slice", "endpoint", "owner", "llama.cpp", "RPC", "memory", "layers", "weights", "KV cache"
)  # fmt: skip
NOTHING = "-"


def draw(
    model: ModelFacts,
    want: RouteWant,
    shares: Sequence[Share],
    local: Layers,
    head: Head | None,
    *,
    unused: Sequence[Offer] = (),
) -> list[str]:
    """Returns the map's table below a line on the model; `unused` are slices that hold nothing.

    `head`: None where there is no route, and so no place for the output.
    """
    rows = [TITLES, *map(_share, shares), *map(_unused, unused)]
    rows.append(_coordinator(model, want, local, head))
    return [_title(model, want), *_aligned(rows)]


def _title(model: ModelFacts, want: RouteWant) -> str:
    turns = "1 turn" if want.parallel == 1 else f"{want.parallel:,} turns"
    name = plain(model.name or model.architecture, 80)
    return (
        f"{name}: {len(model.layers)} layers, {turns} of {want.ctx:,} tokens, "
        f"fingerprint {model.fingerprint}"
    )


def _share(share: Share) -> tuple[str, ...]:
    layers = span(share.layers) + (" + output" if share.output else "")
    return (*_offer(share.offer), layers, amount(share.weights), amount(share.kv))


def _unused(offer: Offer) -> tuple[str, ...]:
    return (*_offer(offer), NOTHING, NOTHING, NOTHING)


def _offer(offer: Offer) -> tuple[str, ...]:
    facts = offer.facts
    return (
        plain(facts.name),
        offer.endpoint,
        plain(facts.hid, OWNER),
        *_build(facts.build),
        amount(facts.memory),
    )


def _build(build: Build) -> tuple[str, str]:
    protocol = build.protocol
    return plain(build.commit), NOTHING if protocol == UNKNOWN else version(protocol)


def _coordinator(
    model: ModelFacts, want: RouteWant, local: Layers, head: Head | None
) -> tuple[str, ...]:
    parts = [span(local)] if local[0] < local[1] else []
    weights = model.embedding + weights_of(model, local)
    if head == "local":
        parts.append("output")
        # The output of a tied model is the embedding, which is there already.
        weights += model.output - (model.embedding if model.tied else 0)
    return (
        "coordinator",
        NOTHING,
        plain(want.own_hid, OWNER),
        *_build(want.own),
        NOTHING if want.local_memory is None else amount(want.local_memory),
        " + ".join([*parts, "embedding"]),
        amount(weights),
        amount(kv_of(model, want, local)),
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
