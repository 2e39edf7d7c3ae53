"""What a cell and its nest say of themselves in the log: each line and its fields in one place.

`pid` is always the tender's, which leads the cell, `engine_pid` the engine's main process. The
record of a death says why; a line that follows from it does not say so again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from hum_workers.cells.emerged import Emerged
from hum_workers.errors import StartFailed
from hum_workers.spec import CellSpec

log = structlog.get_logger()

NEVER = "not by itself: mend the cause, then send SIGHUP or restart the bee"


def spawned(spec: CellSpec, pid: int | None) -> None:
    """Its tender runs."""
    log.info("worker.cell.spawned", cell=spec.cell_id, pid=pid, engine_log=spec.log_file)


def stage(cell: str, stage: str, detail: str) -> None:
    """Its start has come that far."""
    more = {"detail": detail} if detail else {}
    log.info("worker.cell.stage", cell=cell, stage=stage, **more)


def ready(cell: str, pid: int | None, facts: Mapping[str, Any]) -> None:
    """Its engine has answered."""
    log.info(
        "worker.cell.ready",
        cell=cell,
        pid=pid,
        engine_pid=facts.get("pid"),
        seconds=round(float(facts.get("seconds", 0)), 1),
        media=facts.get("media"),
    )


def cancel_unconfirmed(cell: str, turn: int, seconds: float) -> None:
    """The engine's gauges did not prove that a turn was cancelled."""
    seconds = round(seconds, 1)
    log.warning("worker.cell.cancel_unconfirmed", cell=cell, turn=turn, seconds=seconds)


def emerged(cell: str, record: Emerged) -> None:
    """It is dead."""
    report = log.info if record.asked else log.warning if record.mild else log.error
    report("worker.cell.emerged", cell=cell, **record.facts())


def start_failed(egg: str, error: Exception, again: str, *, mild: bool = False) -> None:
    """A start failed and is tried again; `mild`: by no fault."""
    told = isinstance(error, StartFailed) and error.kind
    more = {} if told else {"reason": str(error)}
    report = log.warning if mild else log.error
    report("worker.cell.start_failed", egg=egg, again=again, **more)


def withdrawn(egg: str, models: Sequence[str], reason: str) -> None:
    """No start is tried any more."""
    log.error("worker.model.withdrawn", egg=egg, models=models, reason=reason, again=NEVER)
