"""What slices and coordinators say of themselves: the shapes that cross a slice's door (pure).

Layers are half open ranges `(first, end)` of block numbers; the output layer (final norm and head)
is told apart. Sizes are bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""A figure of another bee's, which may lie: small enough for sums and floats."""
Text = Annotated[str, msgspec.Meta(max_length=1024)]
Layers = tuple[Whole, Whole]
"""Blocks `first <= n < end`."""


class SliceState(StrEnum):
    """What a slice can be used for now."""

    STARTING = "starting"
    FREE = "free"
    LEASED = "leased"
    RECYCLING = "recycling"
    """Its last holder is gone, and its process is being replaced: the memory held other's data."""
    FAILED = "failed"


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """One installed llama.cpp. Two sides work together when commit and protocol are the same."""

    commit: Text
    """`11434-1a2b3c4d`: number and commit as the program says them."""
    digest: Text
    """sha256 of the program's file, 16 hex digits; only reported."""
    protocol: tuple[Whole, Whole, Whole]
    """The triple of rpc-server's HELLO; (0, 0, 0) where it is not known yet."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device behind rpc-server, by its own figures (a CPU always says all of the memory)."""

    name: Text
    free: Whole
    total: Whole


class SliceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the bee of a slice says at its door."""

    hid: Text
    name: Text
    """The egg's name, for people."""
    build: Build
    devices: Annotated[tuple[Device, ...], msgspec.Meta(max_length=64)]
    memory: Whole
    """Bytes that a model may take here: the bee's own figure."""
    layers: Layers | None = None
    """What its egg binds it to; None: any."""
    fingerprint: Text | None = None
    """The model that its egg binds it to; None: any."""
    state: SliceState
    holder: Text | None = None
    """The hid that leases it."""
    direct: Text | None = None
    """`host:port` of rpc-server itself, where the egg says that the network is private."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A slice as a coordinator sees it: where its door is, what it said, how far it is."""

    endpoint: str
    """`host:port` of the door."""
    facts: SliceFacts
    declared: Layers | None = None
    """Layers that the coordinator's egg gives it."""
    round_trip: float = 0.0
    """Seconds of one question at the door."""


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """A slice that an egg wants, or slices, of which nothing is heard."""

    reason: str
    """One sentence: which, why, and what to do."""
    layers: Layers | None = None
    """What the egg gives it; None: any."""


class LayerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One block of a model."""

    weights: int
    kv_per_token: int
    """Bytes of KV cache for one token of context with 16-bit values; 0 for a block without."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a GGUF header says of its model."""

    path: str
    """The first file."""
    fingerprint: str
    """sha256 over metadata and tensor tables of all its files, 16 hex digits."""
    architecture: str
    name: str
    layers: tuple[LayerFacts, ...]
    hidden_width: int
    vocabulary: int
    context: int
    """Tokens that the model was trained for."""
    embedding: int
    """Bytes of the token embedding; it always stays with the coordinator."""
    output: int
    """Bytes of the output layer; for a tied model those of the embedding once more."""
    tied: bool
    files: tuple[str, ...]
