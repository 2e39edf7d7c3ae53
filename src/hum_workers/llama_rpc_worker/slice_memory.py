"""How much of a model a slice may hold."""

from __future__ import annotations

import psutil

from hum_workers.llama_rpc_worker.facts import Device

CPU_SHARE = 0.75
"""Of the memory that is free, where the egg says nothing: slices above it were seen to crash
(ggml-org/llama.cpp issue 15055), and the CPU device itself always says that all of it is free."""


def usable(named: int | None, limit: int | None, devices: tuple[Device, ...]) -> int:
    """Returns the bytes that a model may take on these devices.

    `named` is what the egg says; `limit` what the cell's processes may have at most. No devices:
    not known yet, so that only the egg can say.
    """
    if named is None:
        gpus = [device for device in devices if not device.name.startswith("CPU")]
        if gpus:
            named = sum(device.free for device in gpus)
        else:
            named = int(psutil.virtual_memory().available * CPU_SHARE) if devices else 0
    return named if limit is None else min(named, limit)
