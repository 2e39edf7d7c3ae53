"""How a cell ended, in facts and in one line."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hum_workers.figures import Death


@dataclass(frozen=True, kw_only=True)
class Emerged:
    """How a cell ended. `code` and `signal` are the engine's own, None if it never ran."""

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

    def __post_init__(self) -> None:
        if self.asked:
            object.__setattr__(self, "death", Death.STOPPED)


def verdict(
    gone: Mapping[str, Any] | None,
    *,
    tender_status: int,
    orphans: Sequence[str],
    asked: bool,
    killed: bool,
    was_ready: bool,
    diagnose: Callable[[Sequence[str]], str],
) -> Emerged:
    """Returns how a cell ended, from its tender's last frame; None: it left without one.

    `asked` says whether we had begun to stop the cell, `killed` whether without any grace,
    `orphans` who outlived the tender.
    """
    if gone is None:
        how = f"signal {-tender_status}" if tender_status < 0 else f"exit code {tender_status}"
        by = "by" if tender_status < 0 else "with"
        death = Death.TENDER if was_ready else Death.START_FAILED
        return Emerged(
            asked=asked,
            death=death,
            reason="it was killed" if killed else f"its tender ended {by} {how}",
            left=tuple(orphans),
        )
    left = [f"{m['name']} (pid {m['pid']}, state {m['state']})" for m in gone["left"]]
    return Emerged(
        code=gone["code"],
        signal=gone["signal"],
        asked=gone["asked"],
        death=_death(gone, was_ready=was_ready),
        reason=_reason(gone, was_ready=was_ready, diagnose=diagnose),
        left=(*left, *orphans),
        seconds=gone["seconds"],
    )


def _death(gone: Mapping[str, Any], *, was_ready: bool) -> Death:
    if gone["oom_kills"]:
        return Death.MEMORY
    if not was_ready:
        return Death.START_FAILED
    if gone["reason"]:
        return Death.MEMORY if gone.get("over_memory") else Death.TENDER
    if gone["signal"]:
        return Death.KILLED if gone["signal"] == signal.SIGKILL else Death.SIGNAL
    return Death.EXIT


def _reason(
    gone: Mapping[str, Any], *, was_ready: bool, diagnose: Callable[[Sequence[str]], str]
) -> str:
    if gone["oom_kills"]:
        return "killed by the kernel for memory; raise [limits] memory or lower [kv] size"
    if gone["reason"]:
        return str(gone["reason"])
    line = diagnose(gone["lines"])
    if line and not gone["signal"] and not was_ready:
        return line
    how = f"exited with code {gone['code']}"
    if number := gone["signal"]:
        how = f"was killed by {_signal_name(number)}"
    return f"the engine {how}; it said: {line}" if line else f"the engine {how}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
