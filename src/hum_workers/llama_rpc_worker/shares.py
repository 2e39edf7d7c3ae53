"""Shares: what one slice holds of a model, and what that takes of its memory (pure).

Sizes come from the GGUF header and the slice bee's own figure; what rpc-server says of a CPU's
memory is the whole machine's and useless.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Literal

from hum_workers.errors import one_line
from hum_workers.llama_rpc_worker.facts import Build, Layers, ModelFacts, Offer

MOST_SLICES = 15
"""llama-server takes that many entries in its tensor split."""

CELL_STEP = 256
"""llama-server rounds the context of a turn up to a multiple of this."""
PROCESS = 32 << 20
"""Bytes an rpc-server keeps beside all tensors: 6 to 8 MiB were seen, and 43 after several loads,
as small blocks stay with the allocator."""
WORKING_ROWS = 32
"""Rows of the hidden width, 4 bytes a value, that a compute buffer holds for each token of a batch.
13 to 29 MiB were measured with a width of 576 and batches of 512, which is 12 to 26 rows."""

Head = Literal["last", "local"]


@dataclass(frozen=True, kw_only=True)
class RouteWant:
    """What the coordinator's egg asks for, and what it has itself."""

    policy: Literal["declared", "by-memory"] = "by-memory"
    local: Layers | None = None
    """Layers that stay with the coordinator; None: none."""
    alone: bool = False
    """The egg names no slices."""
    head: Head | None = None
    """None: local if the memory is there."""
    ctx: int = 4096
    """Tokens of one turn."""
    parallel: int = 1
    kv_bytes_factor: float = 1.0
    """Size of a KV value against 16 bits: 0.53 for q8_0."""
    batch: int = 512
    """Tokens of one physical batch, `-ub`."""
    own: Build
    own_hid: str
    local_memory: int | None = None
    """Bytes free for the coordinator; None: unknown."""


@dataclass(frozen=True)
class Share:
    """What one slice holds. `weights` includes the output layer if `output` is true."""

    offer: Offer
    layers: Layers
    output: bool
    weights: int
    kv: int


def share(model: ModelFacts, want: RouteWant, offer: Offer, layers: Layers, output: bool) -> Share:
    """Returns the share of a slice that holds these layers, and the output layer or not."""
    weights = weights_of(model, layers) + (model.output if output else 0)
    return Share(offer, layers, output, weights, kv_of(model, want, layers))


def weights_of(model: ModelFacts, layers: Layers) -> int:
    return sum(layer.weights for layer in model.layers[slice(*layers)])


def kv_of(model: ModelFacts, want: RouteWant, layers: Layers) -> int:
    """Bytes of the KV cache of these layers, for all turns at once."""
    cells = -(-want.ctx // CELL_STEP) * CELL_STEP * want.parallel
    tokens = sum(layer.kv_per_token for layer in model.layers[slice(*layers)])
    return ceil(tokens * cells * want.kv_bytes_factor)


def working(model: ModelFacts, want: RouteWant) -> int:
    """Bytes that a process needs beside weights and KV cache."""
    return PROCESS + want.batch * model.hidden_width * 4 * WORKING_ROWS


def capacity(model: ModelFacts, want: RouteWant, offer: Offer) -> int:
    """Bytes of weights and KV cache that a slice can take."""
    return max(offer.facts.memory - working(model, want), 0)


def named(offer: Offer) -> str:
    """Returns the slice as problems name it; its name is what another bee says."""
    return f"slice {plain(offer.facts.name)} at {offer.endpoint}"


def plain(text: str, most: int = 40) -> str:
    """Returns a word of another bee's on one line, and short."""
    text = one_line(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def span(layers: Layers) -> str:
    """Returns a range as eggs write it: `0:10`."""
    return f"{layers[0]}:{layers[1]}"


def gaps(taken: Iterable[Layers], count: int) -> list[Layers]:
    """Returns the layers of `count` that no range holds, as ranges."""
    free, at = [], 0
    for first, end in sorted(taken):
        if first > at:
            free.append((at, min(first, count)))
        at = max(at, end)
    if at < count:
        free.append((at, count))
    return free
