"""How a cell ended: one record, in facts and in one line, and what to do next."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hum_workers.cells.blame import Diagnose, Diagnosis, advice
from hum_workers.figures.counts import Death, LastDeath
from hum_workers.frames import Cause
from hum_workers.process.roll import how

OUR_WORD = {
    Cause.MEMORY: Death.MEMORY,
    Cause.STALLED: Death.STALLED,
    Cause.CANCEL: Death.CANCEL,
    Cause.START_TIMEOUT: Death.START_TIMEOUT,
    Cause.START: Death.START_FAILED,
    Cause.SOCKET: Death.EXIT,
    Cause.TENDER: Death.TENDER,
}
"""What the causes mean for which it was us who ended the engine."""

AGAIN = "another is raised when that is back"
"""The advice where nothing has failed."""


@dataclass(frozen=True)
class Fault:
    """Why a cell is ended that did nothing wrong. `death` is what its end counts as."""

    death: Death
    mild: bool = False
    """What it needs was stopped elsewhere, as somebody there asked: nothing has failed."""


@dataclass(frozen=True, kw_only=True)
class Emerged:
    """How a cell ended. `code` and `signal` are those of the process that ended first."""

    code: int | None = None
    signal: int | None = None
    asked: bool = False
    death: Death = Death.START_FAILED
    """Its class; `STOPPED` whenever it was asked for."""
    reason: str = ""
    """One line: why we ended it, or the one useful line of the engine."""
    left: tuple[str, ...] = ()
    """Processes that even SIGKILL did not end in time."""
    seconds: float = 0.0
    """Its age."""
    peak_rss_bytes: int = 0
    """0: not known, it ended before it was looked at twice."""
    swept: tuple[str, ...] = ()
    """Names in /dev/shm that it left behind and that were removed."""
    turns_lost: int = 0
    """Turns that were in it when it died."""
    said: bool = True
    """Whether the engine said anything, so that there is a log of it."""
    words: Mapping[str, str] = field(default_factory=dict)
    """A worker's own advice, as its spec brings it."""
    devices: tuple[str, ...] = ()
    """What became of each of its devices."""
    mild: bool = False
    """See `Fault`."""
    by: str = "itself"
    """Who ended it: `us`, `itself`, or the name of a signal."""

    def __post_init__(self) -> None:
        if self.asked:
            object.__setattr__(self, "death", Death.STOPPED)
            object.__setattr__(self, "by", "us")

    @property
    def advice(self) -> str:
        """The next step of an operator; empty when it was asked for."""
        if self.mild:
            return AGAIN
        return advice(self.death, self.words, said=self.said)

    def facts(self) -> dict[str, Any]:
        """Returns the fields of its line in the log; what there is nothing of is left out.

        Code and signal of an engine that we condemned are our own doing: they are left out, too.
        """
        condemned = self.by == "us" and not self.asked
        facts = {
            "death": self.death.value,
            "reason": self.reason,
            "advice": self.advice,
            "by": self.by,
            "code": None if condemned else self.code,
            "signal": None if condemned else self.signal,
            "seconds": round(self.seconds, 1),
            "peak_mib": self.peak_rss_bytes >> 20 or None,
            "turns_lost": self.turns_lost,
            "left": list(self.left),
            "swept": list(self.swept),
            "devices": list(self.devices),
        }
        return {name: value for name, value in facts.items() if value not in (None, "", [])}

    def record(self, cell_id: str, at: float) -> LastDeath:
        """Returns the record for figures and status; `at` is wall clock since 1970."""
        return LastDeath(
            cell=cell_id,
            death=self.death,
            reason=self.reason,
            at=at,
            by=self.by,
            advice=self.advice,
            age_seconds=self.seconds,
            peak_rss_bytes=self.peak_rss_bytes,
            turns_lost=self.turns_lost,
        )

    def __str__(self) -> str:
        return f"{self.reason}; {self.advice}" if self.advice else self.reason


def verdict(
    gone: Mapping[str, Any] | None,
    *,
    tender_status: int,
    orphans: Sequence[str],
    asked: bool,
    killed: bool,
    was_ready: bool,
    diagnose: Diagnose,
    lost: str = "",
    sentence: tuple[Fault, str] | None = None,
    hint: str = "",
) -> Emerged:
    """Returns how a cell ended, from its tender's last frame; None: it left without one.

    `asked` says whether we had begun to stop the cell, `killed` whether without any grace,
    `orphans` who outlived the tender, `lost` why we killed a tender that hung, `sentence` for
    which fault of others we ended it, `hint` what a silent engine waits for.
    """
    if sentence is not None:
        fault, reason = sentence
        # Whether the engine noticed first and aborted is chance.
        found = verdict(
            gone,
            tender_status=tender_status,
            orphans=orphans,
            asked=False,
            killed=False,
            was_ready=was_ready,
            diagnose=diagnose,
        )
        return replace(
            found, asked=False, death=fault.death, reason=reason, mild=fault.mild, by="us"
        )
    if gone is None:
        ended = f"signal {-tender_status}" if tender_status < 0 else f"exit code {tender_status}"
        preposition = "by" if tender_status < 0 else "with"
        return Emerged(
            asked=asked,
            death=Death.TENDER,
            reason="it was killed" if killed else lost or f"its tender ended {preposition} {ended}",
            left=tuple(orphans),
            by="us" if lost else _by(tender_status),
        )
    status = _status(gone)
    death, reason = _cause_of_death(gone, status, was_ready=was_ready, diagnose=diagnose)
    if hint and death in (Death.STALLED, Death.START_TIMEOUT):
        reason = f"{reason}; {hint}"
    left = [f"{m['name']} (pid {m['pid']}, state {m['state']})" for m in gone["left"]]
    return Emerged(
        code=status if status is not None and status >= 0 else None,
        signal=-status if status is not None and status < 0 else None,
        asked=gone["asked"],
        death=death,
        reason=reason,
        left=(*left, *orphans),
        seconds=gone["seconds"],
        peak_rss_bytes=gone["peak_rss_bytes"],
        swept=tuple(gone["swept"]),
        said=bool(gone["lines"]),
        by="us" if Cause(gone["cause"]) in OUR_WORD else _by(status),
    )


def _by(status: int | None) -> str:
    return how(status).removeprefix("was killed by ") if status and status < 0 else "itself"


def _status(gone: Mapping[str, Any]) -> int | None:
    """Returns the status of the process that ended first; negative for a signal."""
    if gone["cause"] == Cause.MEMBER:
        status: int | None = gone["fallen"][1]
    else:
        status = -gone["signal"] if gone["signal"] else gone["code"]
    return status


def _cause_of_death(
    gone: Mapping[str, Any], status: int | None, *, was_ready: bool, diagnose: Diagnose
) -> tuple[Death, str]:
    cause, reason = Cause(gone["cause"]), str(gone["reason"])
    if gone["asked"]:
        return Death.STOPPED, reason
    if gone["oom_kills"]:
        victim = f" ({gone['fallen'][0]})" if gone["fallen"] else ""
        return Death.MEMORY, f"killed by the kernel for memory{victim}"
    if cause in OUR_WORD:
        stacks = f"; stacks {gone['stacks']} are in the engine's log" if gone["stacks"] else ""
        return OUR_WORD[cause], reason + stacks
    said = diagnose(gone["lines"])
    if said.death is Death.SLICE:
        return said.death, said.line  # its abort is only how it says so
    who = gone["fallen"][0] if gone["fallen"] else f"the engine {how(status)}"
    fell = gone["fallen"][1] if gone["fallen"] else status
    if gone["host_ooms"] and -signal.SIGKILL in (fell, status):
        return Death.MEMORY, f"{who} when this host's kernel ended a process for want of memory"
    if not was_ready:
        return _at_start(said, status, who, fell)
    if said.death is Death.GPU_MEMORY:
        return said.death, said.line
    told = said.line and not said.vague
    return _by_status(fell), f"{who}; it said: {said.line}" if told else who


def _at_start(said: Diagnosis, status: int | None, who: str, fell: int | None) -> tuple[Death, str]:
    """A death before the engine was ready: its own words count, where they say something."""
    if said.line and not said.vague and (status or 0) >= 0:
        return said.death or Death.START_FAILED, said.line
    if (fell or 0) < 0:
        return _by_status(fell), f"{who} while it started"
    return Death.START_FAILED, said.line or who


def _by_status(status: int | None) -> Death:
    if status is None or status >= 0:
        return Death.EXIT
    return Death.KILLED if -status == signal.SIGKILL else Death.SIGNAL
