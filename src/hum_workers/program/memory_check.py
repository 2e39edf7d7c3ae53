"""What `--check` says of the memory of several cells at once, whatever the worker.

Pure. A worker says what each cell of an egg needs; here it is summed over
the cells that may live at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hum_workers.program.findings import Finding, Level, amount

SUBJECT = "memory"


@dataclass(frozen=True)
class HostNeed:
    """Memory of the host that one cell of an egg takes."""

    egg: str
    sure: int
    """Bytes without which it can't work: weights and cache."""
    likely: int
    """Bytes with what its processes take beside them."""


@dataclass(frozen=True)
class DeviceNeed:
    """Memory of one device that one cell of an egg takes."""

    egg: str
    device: str
    memory: int
    """Bytes that the device has."""
    held: int
    """Bytes that the cell keeps."""
    free: int
    """Bytes that must be free when it starts."""


@dataclass(frozen=True)
class Cells:
    """How many cells may live at once."""

    most: int
    eggs: int
    """Beyond one for each egg they are of any egg."""


def at_once(sizes: Sequence[int], cells: Cells) -> list[int]:
    """Returns the indexes of the eggs whose cells, living at once, take most; one for each cell."""
    if not sizes:
        return []
    by_size = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    return sorted(by_size[: cells.most]) + [by_size[0]] * max(0, cells.most - cells.eggs)


def check_host_sum(
    needs: Sequence[HostNeed], cells: Cells, *, free: int, total: int, advice: str
) -> Iterator[Finding]:
    """Yields whether the cells that may live at once have room beside each other.

    Args:
        needs: of one cell of each egg.
        free: bytes that can be used now.
        total: bytes in all; 0 when unknown.
        advice: what to do about it.
    """
    chosen = at_once([need.likely for need in needs], cells)
    if len(chosen) < 2 or not total:
        return
    sure, likely = (sum(getattr(needs[i], key) for i in chosen) for key in ("sure", "likely"))
    text = f"{_listed([needs[i].egg for i in chosen])} at once need {amount(likely)}"
    if likely <= free:
        yield Finding("ok", SUBJECT, f"{text} of {amount(free)} free")
        return
    level: Level = "error" if sure > total else "warning"
    there = f"this host has {amount(total)}" if sure > total else f"{amount(free)} are free here"
    yield Finding(level, SUBJECT, f"{text}, and {there}; {advice}")


def check_device_sums(
    needs: Sequence[DeviceNeed], cells: Cells, *, advice: str
) -> Iterator[Finding]:
    """Yields the devices that the cells of several eggs, or several of one, can't share.

    Args:
        needs: of one cell of each egg, for each of its devices, in the order of their start.
        advice: what to do about it.
    """
    for device in dict.fromkeys(need.device for need in needs):
        here = [need for need in needs if need.device == device]
        chosen = at_once([need.held for need in here], cells)
        if len(chosen) < 2:
            continue
        before, last = chosen[:-1], here[chosen[-1]]
        need = sum(here[i].held for i in before) + max(last.held, last.free)
        if need > last.memory:
            names = _listed([here[i].egg for i in chosen])
            text = f"{names} at once need {amount(need)} of {device}, which has"
            yield Finding("error", SUBJECT, f"{text} {amount(last.memory)}; {advice}")


def _listed(names: Sequence[str]) -> str:
    counted = {name: names.count(name) for name in names}
    shown = [name if count == 1 else f"{count} of {name}" for name, count in counted.items()]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
