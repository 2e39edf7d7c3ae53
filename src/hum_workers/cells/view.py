"""How a cell describes itself to who wants to show it."""

from __future__ import annotations

from hum_workers.cells.states import CellState
from hum_workers.figures.counts import CellView
from hum_workers.process.vitals import Vitals


def cell_view(
    cell_id: str,
    state: CellState,
    pid: int,
    *,
    age: float,
    vitals: Vitals | None,
    output_tokens: int,
    tokens_per_second: float,
    stage: str,
) -> CellView:
    """Returns what a cell is now; without `vitals`, 0 for what they would tell."""
    return CellView(
        cell=cell_id,
        state=state.value,
        pid=pid,
        engine_pid=vitals.pid if vitals else 0,
        age_seconds=age,
        rss_bytes=vitals.rss_bytes if vitals else 0,
        cpu_ms=vitals.cpu_ms if vitals else 0,
        open_files=vitals.fd_count if vitals else 0,
        processes=vitals.processes if vitals else 0,
        output_tokens=output_tokens,
        tokens_per_second=tokens_per_second,
        stage=stage if state is CellState.HATCHING else "",
    )
