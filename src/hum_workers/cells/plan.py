"""What a nest is made with: the egg's limits, and who raises its engine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hum_workers.cells.blame import Diagnosis
from hum_workers.cells.custody import Custody
from hum_workers.cells.ledger import Ledger
from hum_workers.media.pollen import MediaRules
from hum_workers.spec import CellSpec
from hum_workers.tools.parking import ParkingLimits
from hum_workers.tools.tool import ToolRules


@dataclass(frozen=True, kw_only=True)
class NestLimits:
    """Bounds of one egg's turns; seconds and counts, `[limits]` and `[lifecycle]` of the egg."""

    slots: int
    """Turns that are inside the engine at once; the rest wait here, where a cancel is instant."""
    turn_timeout: float
    wait_timeout: float
    max_waiting: int
    max_waiting_per_sid: int
    stop_grace: float
    drain_timeout: float = 30.0
    idle_timeout: float | None = None
    """Seconds without a turn after which the cell goes; None: it stays."""


class Raiser(Protocol):
    """What a kind of worker knows of raising its engine; both methods may block."""

    def spec(self, cell_id: str, away: Mapping[str, str]) -> CellSpec:
        """Returns the spec of the next cell. It gets none of the devices in `away`, UUID to why.

        Raises:
            NoDevice: devices for it are there, and away.
            HumError: the engine or the model is not there, in one sentence.
        """

    def diagnose(self, lines: Sequence[str]) -> Diagnosis:
        """Returns the one useful line of an engine's last output, or none, and its class."""


def backoff(first: float = 1.0, most: float = 60.0) -> Iterator[float]:
    """Yields pauses before another raise: doubling up to `most`, with up to a quarter of jitter."""
    pause = first
    while True:
        yield pause * random.uniform(1.0, 1.25)
        pause = min(pause * 2, most)


@dataclass(frozen=True, kw_only=True)
class NestPlan:
    """What every kind of nest is made with. `on_change` is called when `advertised` has changed."""

    name: str
    models: Sequence[str]
    """The first one is the name under which the engine serves; the others are aliases. None for a
    cell that answers no prompts."""
    limits: NestLimits
    media: MediaRules = MediaRules()
    tools: ToolRules = ToolRules()
    parking: ParkingLimits = ParkingLimits()
    on_prompt: bool
    advertises: bool = True
    """Somebody hears of the models; else their end is told by who asked."""
    default_max_tokens: int | None
    start_slot: asyncio.Semaphore
    on_change: Callable[[], None]
    pulse: Callable[[str, str, str, int], None] = lambda sid, kind, cell_id, pid: None
    """Tells a conversation without a turn of an event: sid, kind (thrum, section 6), cell, pid."""
    custody: Custody = field(default_factory=Custody)
    """Who has which device; all eggs of a bee share it."""
    ledger: Ledger | None = None
    """Where the processes of its cells are written down."""
    pauses: Callable[[], Iterator[float]] = backoff
