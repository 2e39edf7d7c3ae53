"""What a turn is told that gets no cell."""

from __future__ import annotations

from hum_workers.errors import ErrorCode, TurnError


def start_failed(model: str, reason: str) -> TurnError:
    """Returns the error for a cell that can't be raised."""
    message = f"the engine of {model} can't be started: {reason}"
    return TurnError(ErrorCode.CELL_START_FAILED, message)


def stops() -> TurnError:
    """Returns the error for a turn that comes while the bee stops."""
    return TurnError(ErrorCode.SHUTTING_DOWN, "the bee stops; ask again when it is back")


def no_room(model: str, waiting: int, why: str) -> TurnError:
    """Returns the error for a turn that may not even wait."""
    message = f"{waiting} prompts wait for {model} already ([limits] max_waiting)"
    return TurnError(ErrorCode.NO_CAPACITY, f"{message}: {why}")
