"""The states of a cell and the moves between them (pure): docs/lifecycle.md tells each."""

from __future__ import annotations

from enum import StrEnum


class CellState(StrEnum):
    """Where a cell is in its one life."""

    COLD = "cold"
    HATCHING = "hatching"
    READY = "ready"
    STOPPING = "stopping"
    DEAD = "dead"


MOVES: dict[CellState, tuple[CellState, ...]] = {
    CellState.COLD: (CellState.HATCHING, CellState.DEAD),
    CellState.HATCHING: (CellState.READY, CellState.STOPPING, CellState.DEAD),
    CellState.READY: (CellState.STOPPING, CellState.DEAD),
    CellState.STOPPING: (CellState.DEAD,),
    CellState.DEAD: (),
}


def moved(state: CellState, to: CellState) -> CellState:
    """Returns the new state.

    Raises:
        ValueError: no cell goes that way.
    """
    if to not in MOVES[state]:
        raise ValueError(f"a cell that is {state} never becomes {to}")
    return to
