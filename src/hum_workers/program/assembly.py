"""Assembly: from eggs to nests, the same for a bee that serves and for a single prompt."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hum_workers.cells.custody import Custody
from hum_workers.cells.ephemeral import EphemeralNest, Spares
from hum_workers.cells.lasting import LastingNest
from hum_workers.cells.ledger import Ledger
from hum_workers.cells.nest import Nest
from hum_workers.cells.plan import NestLimits, NestPlan, Raiser
from hum_workers.cells.room import Room
from hum_workers.media.pollen import MediaRules
from hum_workers.program import places
from hum_workers.program.annex import Annex
from hum_workers.program.worker import Worker
from hum_workers.thrum.paths import state_home
from hum_workers.tools.parking import ParkingLimits
from hum_workers.tools.tool import ToolRules

OPEN_FILES = 65_536
"""Descriptors that a process of ours asks for: each turn is a socket in its tender."""


@dataclass(frozen=True, kw_only=True)
class NestMaker:
    """Makes the nests of one bee; nothing starts yet."""

    worker: Worker
    cells: Path
    tag: str
    """What tells this bee from others."""
    log_tag: str | None = None
    """The same in the name of the engine's log, where that is to be written over."""
    start_slot: asyncio.Semaphore
    on_change: Callable[[], None]
    on_prompt: bool
    advertises: bool = True
    room: Room | None = None
    """Where the eggs of a bee share its cells."""
    spares: Spares | None = None
    """Of an ephemeral bee, the cells that its eggs share; None: one cell that lasts."""
    pulse: Callable[[str, str, str, int], None] = lambda sid, kind, cell_id, pid: None
    ledger: Ledger | None = None
    custody: Custody = field(default_factory=Custody)
    annex: Annex | None = None

    def nest(self, egg: Any) -> Nest:
        """Returns the nest of one egg."""
        raisers = self.raisers(egg)
        if self.annex is not None:
            own = self.annex.nest(egg, self.plan(egg), raisers(0), self.room)
            if own is not None:
                return own
        if self.spares is None:
            return LastingNest(self.plan(egg), raisers(0), room=self.room)
        return EphemeralNest(self.plan(egg), raisers, spares=self.spares)

    def adopt(self, egg: Any, nest: Nest, *, renew: bool) -> None:
        """Has a nest live by another egg of its name; see `Nest.adopt`."""
        raisers = self.raisers(egg)
        if self.annex is not None:
            first = raisers(0)
            self.annex.adopt(egg, nest, first)
            others = raisers
            raisers = lambda lane: others(lane) if lane else first  # noqa: E731
        nest.adopt(self.plan(egg), raisers, renew=renew)

    def fixed(self, before: Sequence[Any], now: Sequence[Any]) -> list[str]:
        """Returns the keys of these eggs that only a restart of the bee can change."""
        return [] if self.annex is None else list(self.annex.fixed(before, now))

    def raisers(self, egg: Any) -> Callable[[int], Raiser]:
        """Returns what makes the raiser of each of the cells that an egg has side by side."""

        def raiser(lane: int) -> Raiser:
            private = places.private_folder(self.cells, self.tag, egg.name, lane)
            state, tag = state_home(os.environ), self.log_tag or self.tag
            log_file = places.engine_log(state, self.worker.hive, tag, egg.name, lane)
            return self.worker.raiser(egg, private, log_file, os.environ)

        return raiser

    def plan(self, egg: Any) -> NestPlan:
        """Returns what the nest of an egg lives by."""
        foragers, spares = egg.tools.foragers, self.spares
        return NestPlan(
            name=egg.name,
            models=egg.models(),
            limits=NestLimits(
                slots=self.worker.slots(egg) if spares is None else 1 + spares.count,
                turn_timeout=egg.limits.turn_timeout,
                wait_timeout=egg.limits.wait_timeout,
                max_waiting=egg.limits.max_waiting,
                max_waiting_per_sid=egg.limits.max_waiting_per_sid,
                stop_grace=egg.lifecycle.stop_grace,
                drain_timeout=egg.lifecycle.drain_timeout,
                idle_timeout=egg.lifecycle.idle_timeout,
            ),
            media=media_rules(egg),
            tools=ToolRules(
                parser=self.worker.tool_parser(egg),
                foragers=foragers if isinstance(foragers, bool) else frozenset(foragers),
                step_timeout=egg.tools.step_timeout,
                max_steps=egg.tools.max_steps,
            ),
            parking=ParkingLimits(
                most=egg.tools.parked_max, age=egg.tools.parked_age, bytes=egg.tools.parked_bytes
            ),
            on_prompt=self.on_prompt,
            advertises=self.advertises,
            default_max_tokens=self.worker.default_max_tokens(egg),
            start_slot=self.start_slot,
            on_change=self.on_change,
            pulse=self.pulse,
            custody=self.custody,
            ledger=self.ledger,
        )


def media_rules(egg: Any) -> MediaRules:
    """Returns `[media]` of an egg as what a prompt is held to."""
    return MediaRules(
        max_count=egg.media.max_count,
        max_bytes=egg.media.max_bytes,
        domains=tuple(egg.media.domains),
    )


def raise_open_files() -> None:
    """Lifts the soft limit of open files, which the tender inherits, as far as the host lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Stops:
    """SIGTERM and SIGINT: the first asks for an orderly stop, the second goes straight to the kill.

    `asked` resolves with the name of the first signal. The second cancels the task that made this
    object, and `forced` is then the exit code, 128 and the signal's number.
    """

    def __init__(self, signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[str] = loop.create_future()
        self.forced: int | None = None
        self._task = asyncio.current_task()
        for number in signals:
            loop.add_signal_handler(number, self._signal, number)

    def _signal(self, number: signal.Signals) -> None:
        if not self.asked.done():
            self.asked.set_result(number.name)
        elif self.forced is None and self._task is not None:
            self.forced = 128 + number
            self._task.cancel()
