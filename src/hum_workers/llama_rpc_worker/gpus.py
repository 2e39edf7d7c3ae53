"""Which GPUs a llama.cpp program will have: all that it sees, but for those that are set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hum_workers.devices import nvidia_devices, visible
from hum_workers.errors import NoDevice
from hum_workers.spec import CellSpec

VARIABLE = "CUDA_VISIBLE_DEVICES"


def given(
    spec: CellSpec, built: Sequence[str], named: Sequence[str], away: Mapping[str, str]
) -> CellSpec:
    """Returns the spec with its GPUs; those in `away`, UUID to why, are hidden from the program.

    `built` are the devices that the program lists, `named` those that the egg lends: numbers that
    would stand for others if one were hidden.

    Raises:
        NoDevice: none is left, or the egg names its devices.
    """
    cuda = any(name.startswith("CUDA") for name in built)
    if not cuda or (named and not any(name.startswith("CUDA") for name in named)):
        return spec
    seen = visible(nvidia_devices(spec.env), spec.env.get(VARIABLE))
    free = [gpu.uuid for gpu in seen if gpu.uuid not in away]
    if len(free) == len(seen):
        return replace(spec, devices=free)
    if not free or named:
        told = "; ".join(f"{gpu.uuid} is {away[gpu.uuid]}" for gpu in seen if gpu.uuid in away)
        raise NoDevice(f"not all GPUs of the cell can be used: {told}")
    return replace(spec, devices=free, env={**spec.env, VARIABLE: ",".join(free)})
