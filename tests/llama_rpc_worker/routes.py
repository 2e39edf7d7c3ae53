"""Models, slices and wishes for tests of routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import msgspec

from hum_workers.llama_rpc_worker.facts import (
    Build,
    LayerFacts,
    Layers,
    ModelFacts,
    Offer,
    SliceFacts,
    SliceState,
)
from hum_workers.llama_rpc_worker.shares import RouteWant

MIB = 1 << 20
OWN = "hid-coordinator"
BUILD = Build(commit="11434-abc", digest="d" * 16, protocol=(7, 0, 0))
SMALL = ModelFacts(
    path="m.gguf",
    fingerprint="f" * 16,
    architecture="llama",
    name="SmolLM2 135M",
    layers=(LayerFacts(weights=2_216_448, kv_per_token=768),) * 30,
    hidden_width=576,
    vocabulary=49_152,
    context=8192,
    embedding=30_081_024,
    output=30_083_328,
    tied=True,
    files=("m.gguf",),
)
"""The real small model."""
WANT = RouteWant(own=BUILD, own_hid=OWN, ctx=512, parallel=2)


def model(count: int, weights: int = MIB, kv: int = 0, **more: Any) -> ModelFacts:
    layers = (LayerFacts(weights=weights, kv_per_token=kv),) * count
    return msgspec.structs.replace(SMALL, layers=layers, **more)


def want(**more: Any) -> RouteWant:
    return replace(WANT, **more)


def offer(
    name: str,
    given: Layers | None = None,
    *,
    memory: int = 1 << 30,
    round_trip: float = 0.0,
    endpoint: str | None = None,
    **facts: Any,
) -> Offer:
    """A free slice; `given` are the layers that the coordinator's egg gives it."""
    said = {
        "hid": f"hid-{name}",
        "name": name,
        "build": BUILD,
        "devices": (),
        "memory": memory,
        "state": SliceState.FREE,
    }
    return Offer(
        endpoint=endpoint or f"10.0.0.1:{crc32(name.encode()) % 65_536}",
        facts=SliceFacts(**{**said, **facts}),
        declared=given,
        round_trip=round_trip,
    )
