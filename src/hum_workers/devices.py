"""What cards there are, by UUID, and which of them an egg asks for.

Without NVIDIA devices everything runs on the CPU. Indexes are those of `nvidia-smi`, in the order
of the PCI bus; an inherited CUDA_VISIBLE_DEVICES bounds the choice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hum_workers.errors import NoDevice, UsageError
from hum_workers.process.asked_process import ask

SMI_TIMEOUT = 10.0
NONE_AWAY: Mapping[str, str] = MappingProxyType({})
_QUERY = ["--query-gpu=index,uuid,memory.total,name", "--format=csv,noheader,nounits"]


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA device."""

    index: int
    """As `nvidia-smi` counts; -1 for a slice of a card (MIG)."""
    uuid: str
    memory: int | None = None
    """Bytes in all; None when unknown."""
    name: str = ""


def nvidia_devices(
    env: Mapping[str, str], *, timeout: float = SMI_TIMEOUT, proc: Path = Path("/proc")
) -> list[Gpu]:
    """Returns the host's NVIDIA devices, asked of `nvidia-smi`, else of the driver's files.

    Empty when there are none. Never raises.
    """
    try:
        done = ask(
            ["nvidia-smi", *_QUERY],
            env={"PATH": env.get("PATH", os.defpath), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            cwd=os.sep,
            timeout=timeout,
        )
        if done.code == 0:
            return parse_smi(done.out.decode("utf-8", "replace"))
    except (OSError, TimeoutError):
        pass
    return _driver_files(proc / "driver/nvidia/gpus")


def parse_smi(text: str) -> list[Gpu]:
    """Returns the devices of `nvidia-smi`'s table; lines of another form are left out."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", 3)]
        if len(cells) == 4 and cells[0].isdecimal() and cells[1]:
            mib = int(cells[2]) if cells[2].isdecimal() else None
            gpus.append(Gpu(int(cells[0]), cells[1], mib and mib * 1024**2, cells[3]))
    return sorted(gpus, key=lambda gpu: gpu.index)


def _driver_files(folder: Path) -> list[Gpu]:
    """Reads `/proc/driver/nvidia/gpus/<bus>/information`; the bus addresses give the order."""
    gpus: list[Gpu] = []
    try:
        for bus in sorted(folder.iterdir()):
            text = (bus / "information").read_text("utf-8", "replace")
            uuid = re.search(r"GPU UUID:\s*(GPU-[0-9a-f-]+)", text)
            name = re.search(r"Model:\s*(.+)", text)
            if uuid:
                gpus.append(Gpu(len(gpus), uuid[1], None, name[1].strip() if name else ""))
    except OSError:
        pass
    return gpus


def visible(gpus: Sequence[Gpu], inherited: str | None) -> list[Gpu]:
    """Returns the devices that an inherited CUDA_VISIBLE_DEVICES leaves, in its order.

    As CUDA reads it: indexes or UUIDs (also their beginnings), and the first entry that names
    nothing ends the list. None: not set, all are visible.
    """
    if inherited is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in inherited.split(",")):
        gpu = _find(gpus, entry)
        if gpu is None:
            break
        chosen.append(gpu)
    return chosen


def _find(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.startswith("MIG-"):
        return Gpu(-1, entry)
    if entry.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    hits = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    return hits[0] if len(hits) == 1 else None


def choose(
    asked: Sequence[str | int],
    gpus: Sequence[Gpu],
    *,
    count: int,
    inherited: str | None = None,
    away: Mapping[str, str] = NONE_AWAY,
) -> list[Gpu]:
    """Returns the devices for one cell; an empty list means the CPU.

    Args:
        asked: `placement.gpu`: indexes or UUIDs; empty takes the first visible ones.
        count: how many the cell needs (tensor x pipeline x data).
        away: those that no cell may have now, UUID to half a sentence that says why.

    Raises:
        UsageError: one that is asked for is not there or not visible, or there are too few.
        NoDevice: there would be enough if none were away.
    """
    seen = visible(gpus, inherited)
    if not asked:
        if not seen and not away:
            return []
        if len(seen) < count and not away.keys() - {gpu.uuid for gpu in seen}:
            raise UsageError(
                f"[parallel] needs {count} GPUs and {len(seen)} can be used ({_list(seen)}); "
                "lower tensor or pipeline"
            )
        free = [gpu for gpu in seen if gpu.uuid not in away]
        if len(free) < count:
            raise _away(f"{count} needed, {len(free)} free", away)
        return free[:count]
    chosen: list[Gpu] = []
    for entry in map(str, asked):
        gpu = _find(gpus, entry)
        if gpu is None and away:
            raise _away(f"{entry} is not seen now", away)  # a driver that hangs names none
        if gpu is None:
            there = _list(gpus) or "no NVIDIA device"
            raise UsageError(f"[placement] gpu: {entry} is not on this host; there is {there}")
        if inherited is not None and gpu.uuid not in {other.uuid for other in seen}:
            raise UsageError(
                f"[placement] gpu: {entry} is outside CUDA_VISIBLE_DEVICES={inherited}"
            )
        if gpu in chosen:
            raise UsageError(f"[placement] gpu: {entry} is named twice")
        chosen.append(gpu)
    if len(chosen) != count:
        raise UsageError(
            f"[placement] gpu names {len(chosen)} and [parallel] needs {count}; make them equal"
        )
    if any(gpu.uuid in away for gpu in chosen):
        raise _away("[placement] gpu", away)
    return chosen


def _away(what: str, away: Mapping[str, str]) -> NoDevice:
    told = "; ".join(f"{uuid} is {why}" for uuid, why in away.items())
    return NoDevice(f"no GPU for the cell ({what}): {told}")


def _list(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.index} {gpu.uuid}" for gpu in gpus)


def cores_of(cpus: str | None) -> list[int]:
    """Returns the cores of a list like `0-3,8`; those that we may use when it is None.

    Raises:
        UsageError: the list can't be read.
    """
    if cpus is None:
        return sorted(os.sched_getaffinity(0))
    cores: set[int] = set()
    for part in cpus.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise UsageError(f"[limits] cpus: {cpus!r} is not a list like 0-3,8")
        cores.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(cores)


def usable_cores(cpus: str | None) -> list[int]:
    """Returns the cores of a list that this process may use: threads can be bound to no others.

    Raises:
        UsageError: the list can't be read.
    """
    ours = os.sched_getaffinity(0)
    return [core for core in cores_of(cpus) if core in ours]
