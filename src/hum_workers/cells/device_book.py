"""The book of a bee's devices (pure): which cell has which, whose memory is not back, and why.

A device is its UUID. It is free, held by cells, being cleared after one of them has died, or set
aside. What is read of a device is a `Use`; `judge` says whether a dead cell's memory is back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

TOLERANCE = 256 * 1024**2
"""Bytes above what was used before the cell: what a driver keeps differs by some MiB."""
MIB = 1024**2
ADVICE = (
    "end the process that holds it, or reset the device (nvidia-smi --gpu-reset) when nobody uses "
    "it; it is taken back when its memory is free"
)
NO_ANSWER = "nvidia-smi gives no answer for it"


@dataclass(frozen=True)
class User:
    """A process that a device works for."""

    pid: int
    memory: int | None
    """Bytes; None where the driver does not tell."""


@dataclass(frozen=True)
class Use:
    """What of a device is in use: bytes in all, and by which processes as far as they are shown."""

    memory: int
    users: tuple[User, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Whether the memory of a dead cell is back. `told` is half a sentence for people."""

    back: bool
    told: str
    pids: tuple[str, ...] = ()
    """Who holds it, each with pid and state."""
    memory: int = 0
    """Bytes that no living process of others explains."""


def judge(
    now: Use | None,
    before: Use | None,
    *,
    left: Mapping[int, str],
    living: Mapping[int, str],
    shared: bool,
    tolerance: int = TOLERANCE,
) -> Finding:
    """Returns whether a device is as it was before a cell that has died.

    Memory counts as somebody else's if that process lives or was there before. A process that has
    ended explains nothing, so a context that outlives its process keeps the device.

    Args:
        now: None when the device could not be looked at.
        before: the same before the cell's start; None when that is not known.
        left: the cell's processes that even SIGKILL did not end, pid to name and state.
        living: the processes that live, of those that are shown for the device.
        shared: whether other cells of ours have it, too.
    """
    if now is None:
        return Finding(back=False, told=NO_ANSWER)
    ours = [user for user in now.users if user.pid in left]
    if ours:
        pids = tuple(left[user.pid] for user in ours)
        told = f"{', '.join(pids)} of the dead cell still works on it"
        return Finding(back=False, told=told, pids=pids, memory=_sum(ours))
    if before is None:
        return Finding(back=True, told="no process of the cell is on it")
    known = {user.pid for user in before.users}
    others = [user for user in now.users if user.pid in living or user.pid in known]
    if any(user.memory is None for user in others):
        # The driver tells no sizes (MIG, WSL): who is there is all there is to see.
        return Finding(back=True, told="no process of the cell is on it; sizes are not shown")
    if shared and not any(user.pid in living for user in now.users):
        return Finding(back=True, told="not proven: other cells have it, and no process is shown")
    over = (now.memory - _sum(others)) - (before.memory - _sum(before.users))
    if over <= tolerance:
        return Finding(back=True, told="its memory is back")
    dead = tuple(f"pid {user.pid} (ended)" for user in now.users if user not in others)
    who = ", ".join(dead) if dead else "no process is shown for it"
    told = f"{over // MIB} MiB more are in use than before the cell; {who}"
    return Finding(back=False, told=told, pids=dead, memory=over)


def _sum(users: Iterable[User]) -> int:
    return sum(user.memory or 0 for user in users)


@dataclass(frozen=True, kw_only=True)
class Aside:
    """A device that no cell gets. `since` is wall clock since 1970."""

    uuid: str
    cell: str
    """The one whose memory is not back."""
    finding: Finding
    since: float
    before: Use | None
    left: Collection[int]

    @property
    def why(self) -> str:
        """Half a sentence, for who asks for the device."""
        return f"set aside after cell {self.cell} died: {self.finding.told}"


@dataclass
class _Page:
    """One device: its cells with what was in use before each, and who has died on it."""

    cells: dict[str, Use] = field(default_factory=dict)
    clearing: set[str] = field(default_factory=set)
    aside: dict[str, Aside] = field(default_factory=dict)
    """By cell: one that has died beside another knows what that held as what was there before."""


class DeviceBook:
    """Who has which device. Devices that nothing is known of are free."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}

    def take(self, cell: str, uuids: Sequence[str], use: Mapping[str, Use]) -> None:
        """Gives a cell the devices, of which `use` is as before it; others are not watched."""
        for uuid in uuids:
            if uuid in use:
                self._page(uuid).cells[cell] = use[uuid]

    def died(self, cell: str) -> dict[str, Use]:
        """Returns the devices of a dead cell as they were before it; they are cleared now."""
        had = {uuid: page.cells[cell] for uuid, page in self._pages.items() if cell in page.cells}
        for uuid in had:
            del self._pages[uuid].cells[cell]
            self._pages[uuid].clearing.add(cell)
        return had

    def back(self, uuid: str, cell: str) -> None:
        """The memory of a dead cell is proven back."""
        page = self._page(uuid)
        page.clearing.discard(cell)
        page.aside.pop(cell, None)

    def set_aside(self, aside: Aside) -> None:
        """Gives a device to no cell from now on."""
        page = self._page(aside.uuid)
        page.clearing.discard(aside.cell)
        page.aside[aside.cell] = aside

    def clears(self, uuids: Iterable[str]) -> bool:
        """Whether the memory of a dead cell is still waited for on one of the devices."""
        return any(uuid in self._pages and self._pages[uuid].clearing for uuid in uuids)

    def shared(self, uuid: str) -> bool:
        """Whether living cells have the device."""
        return uuid in self._pages and bool(self._pages[uuid].cells)

    @property
    def aside(self) -> list[Aside]:
        """The devices that are set aside, once for each cell whose memory is not back."""
        return [aside for page in self._pages.values() for aside in page.aside.values()]

    @property
    def away(self) -> dict[str, str]:
        """The same as UUID to why."""
        return {aside.uuid: aside.why for aside in self.aside}

    def _page(self, uuid: str) -> _Page:
        return self._pages.setdefault(uuid, _Page())
