"""Which slices a coordinator leaves out for a while (pure; the clock comes in).

A slice that says it is free and can't be leased, or with which each cell dies at once, would be
planned with again and again, and no other would ever be tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hum_workers.llama_rpc_worker.facts import Offer
from hum_workers.llama_rpc_worker.shares import named

FIRST, LONGEST = 30.0, 300.0
"""Seconds for which a slice is left out; each time without a good life between, twice as long."""
ENOUGH = 3
"""Strikes in a row of one kind."""
GOOD_LIFE = 60.0
"""Seconds of a ready cell after which its slices have done nothing wrong."""


class Fault(StrEnum):
    """What a slice has done."""

    REFUSES = "it could not be leased"
    LOSES = "the model could not be loaded, or was lost at once, with it"


@dataclass(frozen=True)
class _Out:
    line: str
    until: float
    pause: float


class LeftOut:
    """By hid, which a slice has proven. `tell` gets a line for each that is left out."""

    def __init__(self, now: Callable[[], float], tell: Callable[[str], None]) -> None:
        self._now = now
        self._tell = tell
        self._out: dict[str, _Out] = {}
        self._strikes: Counter[tuple[str, Fault]] = Counter()

    def refused(self, slices: Sequence[Offer], reason: str, *, free: bool) -> None:
        """These could not be leased; `free`: though anybody may have them, as they say."""
        self._strike(slices, Fault.REFUSES, reason, ENOUGH if free else 1)

    def lost(self, slices: Sequence[Offer], reason: str, *, ready: bool) -> None:
        """With these a cell ended before a good life; `ready`: it had begun one."""
        self._strike(slices, Fault.LOSES, reason, 1 if ready else 2)

    def _strike(self, slices: Sequence[Offer], fault: Fault, reason: str, weight: int) -> None:
        for offer in slices:
            hid = offer.facts.hid
            self._strikes[hid, fault] += weight
            if self._strikes[hid, fault] >= ENOUGH:
                self._leave_out(hid, named(offer), fault, reason)

    def _leave_out(self, hid: str, name: str, fault: Fault, reason: str) -> None:
        del self._strikes[hid, fault]
        before = self._out.get(hid)
        pause = FIRST if before is None else min(before.pause * 2, LONGEST)
        line = f"{name} is left out for {pause:g} s, as {fault}: {reason}"
        self._out[hid] = _Out(line, self._now() + pause, pause)
        self._tell(line)

    def held(self, hids: Iterable[str]) -> None:
        """These could be leased."""
        for hid in hids:
            self._strikes.pop((hid, Fault.REFUSES), None)

    def proven(self, hids: Iterable[str]) -> None:
        """A cell has had a good life with these."""
        for hid in hids:
            self._out.pop(hid, None)
            for fault in Fault:
                self._strikes.pop((hid, fault), None)

    def now(self) -> frozenset[str]:
        """Returns who is left out."""
        now = self._now()
        return frozenset(hid for hid, one in self._out.items() if now < one.until)

    def reasons(self) -> list[str]:
        """Returns a line for each of them."""
        out = self.now()
        return [one.line for hid, one in self._out.items() if hid in out]

    def on_trial(self, hid: str) -> bool:
        """Says whether this slice was left out and has not proven itself since."""
        return hid in self._out
