"""llama-server's layer rule, from a route to its flags and back (pure; facts page, section 3).

With L blocks and `-ngl` G of the L+1 layers are on devices, the last ones: the output is layer L
and so always on the last device. Layer i of those G goes to the first device whose part of the sum
of `-ts` is above i/G. Whole numbers that add up to G make this exact; every mistake in them is
silent. The output's matrix alone can stay with the coordinator by `-ot`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from hum_workers.llama_rpc_worker.route import Route
from hum_workers.llama_rpc_worker.shares import MOST_SLICES

CPU = "CPU"
HEAD_ON_CPU = r"^(token_embd|output)\.weight$=CPU"
"""Anchored: without, `output.weight` would take every block's attn_output along. A tied model's
output is its token embedding."""


def flags(route: Route, endpoints: Sequence[str]) -> list[str]:
    """Returns llama-server's flags for a route whose slices it reaches at these `host:port`.

    `--device` comes behind `--rpc`, which makes the devices it names.

    Raises:
        ValueError: there is not one endpoint for each slice, or one is there twice.
    """
    if len(endpoints) != len(route.shares) or len(set(endpoints)) != len(endpoints):
        raise ValueError(f"{len(route.shares)} slices and the endpoints {list(endpoints)}")
    if len(endpoints) > MOST_SLICES:
        raise ValueError(f"{len(endpoints)} slices; {MOST_SLICES} at most")
    if not route.shares:
        return ["--device", "none", "-ngl", "0", "-fit", "off"]
    counts = split_counts(route)
    devices = [f"RPC{n}" for n in range(len(counts))]
    found = ["--rpc", ",".join(endpoints), "--device", ",".join(devices)]
    found += ["-ngl", str(sum(counts)), "-ts", ",".join(map(str, counts))]
    found += ["-sm", "layer", "-fit", "off"]
    if route.head == "local":
        found += ["-ot", HEAD_ON_CPU]
    return found


def split_counts(route: Route) -> list[int]:
    """Returns `-ts`: layers of each slice, and one more for the last, which has the output's place
    even where its matrix stays with the coordinator."""
    counts = [end - first for first, end in (share.layers for share in route.shares)]
    counts[-1] += 1
    return counts


def assigned(ngl: int, ts: Sequence[float], layers: int) -> list[str]:
    """Returns the device of each of `layers` blocks and of the output, as llama-server assigns it.

    In its own arithmetic, of 32 bits: `RPC0` is the first device of `-ts`.
    """
    on_devices = min(ngl, layers + 1) if ts else 0
    start = layers + 1 - on_devices
    sums = list(accumulate(ts, lambda total, one: _single(total + one), initial=0.0))[1:]
    parts = [_single(one / sums[-1]) for one in sums] if on_devices else []
    found = [CPU] * start
    for n in range(on_devices):
        found.append(f"RPC{bisect_right(parts, _single(n / on_devices))}")
    return found


def _single(value: float) -> float:
    """Rounds to 32 bits."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
