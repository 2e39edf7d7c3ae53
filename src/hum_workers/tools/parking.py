"""Conversations that wait for an asker's tool: bounded in number, bytes and age (pure).

Kept under the callId that is out, and under the sid of the turn that it ended. The oldest go first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hum_workers.turns.talk import Talk


@dataclass(frozen=True, slots=True)
class Parked:
    """One conversation whose asker has a call to answer."""

    call_id: str
    sid: str
    talk: Talk
    at: float
    """When it was parked, on the clock of the parking."""


@dataclass(frozen=True, kw_only=True)
class ParkingLimits:
    """Conversations, their bytes in all, and the seconds each may wait. By default nothing may."""

    most: int = 0
    age: float = 0.0
    bytes: int = 0


class Parking:
    """What waits for results; `now` is the clock."""

    def __init__(self, limits: ParkingLimits, now: Callable[[], float]) -> None:
        self.bytes = 0
        """Bytes of all conversations, as far as they came over a wire."""
        self.limits = limits
        self._now = now
        self._parked: dict[str, Parked] = {}
        self._sids: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def due(self) -> float | None:
        """Returns the seconds until the oldest one goes; None when there is none."""
        oldest = next(iter(self._parked.values()), None)
        return None if oldest is None else max(0.0, oldest.at + self.limits.age - self._now())

    def park(self, call_id: str, sid: str, talk: Talk) -> int:
        """Keeps a conversation and returns how many had to go for it, itself included."""
        self.expire()
        self._parked[call_id] = Parked(call_id, sid, talk, self._now())
        self._sids.setdefault(sid, {})[call_id] = None
        self.bytes += talk.size
        gone = 0
        limits = self.limits
        while len(self._parked) > limits.most or self.bytes > limits.bytes:
            self._drop(next(iter(self._parked)))
            gone += 1
        return gone

    def take(self, call_id: str) -> Parked | None:
        """Returns the conversation of a call and forgets it; None when it is not here any more."""
        self.expire()
        return self._drop(call_id) if call_id in self._parked else None

    def forget(self, sid: str) -> None:
        """Drops what is parked for a sid: its asker has moved on."""
        for call_id in tuple(self._sids.get(sid, ())):
            self._drop(call_id)

    def clear(self) -> None:
        """Drops everything."""
        self._parked.clear()
        self._sids.clear()
        self.bytes = 0

    def expire(self) -> int:
        """Drops what is too old and returns how many."""
        gone = 0
        while self.due() == 0:
            self._drop(next(iter(self._parked)))
            gone += 1
        return gone

    def _drop(self, call_id: str) -> Parked:
        parked = self._parked.pop(call_id)
        self.bytes -= parked.talk.size
        calls = self._sids[parked.sid]
        del calls[call_id]
        if not calls:
            del self._sids[parked.sid]
        return parked
