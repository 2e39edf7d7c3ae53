"""Figures: what a bee counts, and how its parts describe themselves to who wants to show it.

Holds plain numbers and histograms of fixed buckets, one set an egg. Everything runs on the loop of
the bee, so there is no lock; a count costs an addition, a token 0.15 µs (`TurnFigures.ticker`).
Nothing here knows of Prometheus, files or tables: `metrics` and `status` read it when asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import Any

LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""Upper bounds in seconds of all histograms of a turn, so that their shapes compare."""
STARTS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Upper bounds in seconds of a cell's start."""


class Death(StrEnum):
    """Why a cell ended, as a label of few values."""

    STOPPED = "stopped"  # as we asked
    USAGE = "usage"  # a flag or a value that the engine does not know
    MODEL = "model"  # a model that is missing, broken or not supported
    ROOM = "room"  # no room for the KV cache in what the egg allows
    PORT = "port"  # address or socket in use
    START_TIMEOUT = "start_timeout"  # no progress while it started
    START_FAILED = "start_failed"  # before it was ever ready, for another reason
    MEMORY = "memory"  # by the kernel for memory, or over [limits] memory
    GPU_MEMORY = "gpu_memory"  # the device had no memory left
    STALLED = "stalled"  # no progress with turns in flight
    KILLED = "killed"  # SIGKILL, not ours
    SIGNAL = "signal"  # another signal
    EXIT = "exit"  # it left by itself
    TENDER = "tender"  # its tender went first
    CANCEL = "cancel"  # by us, as it did not let a cancelled turn go
    SLICE = "slice"  # what it had on another machine was lost


class Histogram:
    """Counts by bucket: `counts[i]` values up to `bounds[i]`, the last one those above all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Values counted so far."""
        return sum(self.counts)


@dataclass(frozen=True, kw_only=True)
class LastDeath:
    """The latest end of a cell that nobody asked for. `at` is wall clock since 1970."""

    cell: str
    death: Death
    reason: str
    at: float
    by: str = ""
    """Who ended it: `us`, `itself`, or the name of a signal."""
    advice: str = ""
    """What an operator may do next."""
    age_seconds: float = 0.0
    peak_rss_bytes: int = 0
    """0: not known."""
    turns_lost: int = 0
    """Turns that were in it."""


class EggFigures:
    """All counts of one egg: its turns and its cells."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self.now = now
        self.open_turns = 0
        """Turns that have not said their ending."""
        self.turns: dict[str, int] = {}
        """Turns by ending: the reason of a `finish`, the code of an `error`."""
        self.input_tokens = 0
        """Tokens of prompts that were computed; those from the cache are `cached_tokens`."""
        self.cached_tokens = 0
        self.output_tokens = 0
        self.queue = Histogram()
        self.first_token = Histogram()
        self.between_tokens = Histogram()
        self.turn_seconds = Histogram()
        self.cancel_confirm = Histogram()
        self.cancels_unconfirmed = 0
        self.start_seconds = Histogram(STARTS)
        self.restarts = 0
        self.deaths: dict[Death, int] = {}
        self.kills = 0
        self.evictions: dict[str, int] = {}
        self.last_death: LastDeath | None = None

    def turn(self) -> TurnFigures:
        """Begins the figures of one turn, at the moment its prompt came."""
        self.open_turns += 1
        return TurnFigures(self)

    def cancelled(self, confirmed: bool, seconds: float) -> None:
        """Counts a cancel by whether the engine's own gauges proved it, and when."""
        if confirmed:
            self.cancel_confirm.observe(seconds)
        else:
            self.cancels_unconfirmed += 1

    def died(self, last: LastDeath, signal: int | None) -> None:
        """Counts the end of a cell; `signal` is what ended its engine."""
        self.deaths[last.death] = self.deaths.get(last.death, 0) + 1
        self.kills += signal == 9
        if last.death is not Death.STOPPED:
            self.last_death = last

    def evicted(self, reason: str) -> None:
        """Counts a cell that was ended to make room or for idleness."""
        self.evictions[reason] = self.evictions.get(reason, 0) + 1


class TurnFigures:
    """What one turn adds to the figures of its egg."""

    __slots__ = ("_asked", "_egg", "_open")

    def __init__(self, egg: EggFigures) -> None:
        self._egg = egg
        self._asked = egg.now()
        self._open = True

    def admitted(self) -> None:
        """The turn has its slot."""
        self._egg.queue.observe(self._egg.now() - self._asked)

    def ticker(self, *, resumed: bool = False) -> Callable[[], None]:
        """Returns what to call at each piece of text of one engine stream.

        The first call of a turn is its time to first token, the others are times between tokens. A
        stream that goes on after a tool is `resumed`: the time the tool took is neither.
        """
        egg = self._egg
        clock, between = egg.now, egg.between_tokens
        opening = Histogram() if resumed else egg.first_token
        current, last = opening, self._asked

        def tick() -> None:
            nonlocal current, last
            now = clock()
            gap = now - last
            last = now
            current.counts[bisect_left(LATENCY, gap)] += 1
            current.sum += gap
            if current is opening:
                current = between

        return tick

    def ended(self, ending: str, usage: Mapping[str, Any] | None) -> None:
        """Counts the turn under its ending, with the engine's usage; the first call counts."""
        if not self._open:
            return
        self._open = False
        egg = self._egg
        egg.open_turns -= 1
        egg.turns[ending] = egg.turns.get(ending, 0) + 1
        egg.turn_seconds.observe(egg.now() - self._asked)
        if usage is not None:
            egg.input_tokens += usage["input"]
            egg.cached_tokens += usage.get("cached") or 0
            egg.output_tokens += usage["output"]


@dataclass(frozen=True, kw_only=True)
class CellView:
    """One cell as it is now; what is not known yet is 0."""

    cell: str
    state: str
    pid: int
    """Its mark: the tender, which leads the cell."""
    engine_pid: int
    age_seconds: float
    rss_bytes: int
    cpu_ms: int
    open_files: int
    processes: int
    output_tokens: int
    """Generated so far, those of running turns included."""
    tokens_per_second: float
    stage: str = ""
    """Where the start of a cell is that hatches."""


@dataclass(frozen=True, kw_only=True)
class EggView:
    """One egg as it is now."""

    egg: str
    model: str
    advertised: bool
    failure: str | None
    running: int
    """Turns that hold a slot of the cell."""
    waiting: int
    """Turns that wait, for a slot or for an earlier turn of their sid."""
    held: int
    """Turns that wait for a forager's tool and hold no slot."""
    cells: Sequence[CellView]
    figures: EggFigures
    note: str = ""
    """What it lends or lacks, for people; empty where there is nothing to say."""
    covered: bool | None = None
    """Whether every layer of its model has a holder; None: its cell holds all by itself."""
    leased: bool | None = None
    """Whether somebody has leased it; None: it is nothing to be leased."""


@dataclass(frozen=True, kw_only=True)
class DeviceView:
    """A device that is, or was, set aside, because a dead cell's memory was not back."""

    uuid: str
    set_aside: bool
    cell: str = ""
    reason: str = ""
    since: float = 0.0
    """Wall clock since 1970."""


@dataclass(frozen=True, kw_only=True)
class BeeView:
    """One bee as it is now."""

    hive: str
    hid: str
    connected: bool
    connections: int
    """Connections to humd so far."""
    tones: int
    """Tones written so far."""
    merged: int
    """Texts that went in the delta of another."""
    held_bytes: int
    parked_calls: int
    tasks: int = 0
    """Tasks of its loop."""
    devices: Sequence[DeviceView] = ()
    eggs: Sequence[EggView]
