"""Every error of this package, as one tree. A message is one sentence: what, where, what to do.

HumError
├── UsageError          the command line, the egg or the identity is wrong (exit 2; met by a cell's
│   │                   start, as of a damaged model, it is one of the engine: exit 3)
│   ├── EggError        one or more mistakes in egg files, all of them at once
│   ├── IdentityError   the key file is unusable or another bee holds it
│   └── GgufError       a model's file is not there, damaged or no model
├── EngineError         the engine can't be started or is not installed (exit 3)
│   ├── NotYet          not at this moment: what it needs may be there later
│   └── StartFailed     it was started and failed; carries the one useful line
├── SliceError          a slice can't be reached, believed, leased or used; carries which of them
├── LeaseRefused        (llama_rpc_worker.lease) what a slice's own bee says to who may not have it
├── TurnError           this turn ends with an `error` tone; carries the tone's code
└── FrameError          two of our own programs do not understand each other

An exception carries its data; `__str__` builds the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_MESSAGE = 400
"""Characters of one `error` tone's message at most; an engine may quote a whole prompt."""


class ErrorCode(StrEnum):
    """The `code` of an `error` tone (thrum, section 6)."""

    BAD_PROMPT = "bad_prompt"
    NO_CAPACITY = "no_capacity"
    CELL_DIED = "cell_died"
    CELL_START_FAILED = "cell_start_failed"
    ENGINE_ERROR = "engine_error"
    STREAM_BROKEN = "stream_broken"
    STALLED = "stalled"
    TURN_TIMEOUT = "turn_timeout"
    TOOL_TIMEOUT = "tool_timeout"
    TOOL_CALL_EXPIRED = "tool_call_expired"
    TOO_MANY_STEPS = "too_many_steps"
    HUMD_LOST = "humd_lost"
    BEE_RESTARTED = "bee_restarted"
    SHUTTING_DOWN = "shutting_down"
    WORKER_ERROR = "worker_error"


class HumError(Exception):
    """Root of all errors that this package raises on purpose."""


class UsageError(HumError):
    """What the operator gave can't be used; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One mistake in an egg. `line` and `column` count from 1; 0 means unknown."""

    file: str
    line: int = 0
    column: int = 0
    key: str = ""
    message: str

    def __str__(self) -> str:
        place = ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])
        return ": ".join(part for part in (place, self.key, self.message) if part)


class EggError(UsageError):
    """Mistakes found in egg files, in the order of file and line."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(mistakes)
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(str(mistake) for mistake in self.mistakes)


class IdentityError(UsageError):
    """The bee's key file can't be used, or another bee runs with it."""


class GgufError(UsageError):
    """A model's file can't be used. `reason` is what a sentence says after the file's name."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return one_line(f"{self.path} {self.reason}")


class EngineError(HumError):
    """The engine is not there, or can't be started."""


class NotYet(EngineError):
    """What the engine needs is not there at this moment; a later try may find it."""


class NoDevice(NotYet):
    """Devices that could serve are there, and set aside until a dead cell's memory is back."""


class StartFailed(EngineError):
    """A cell did not become ready. `reason` is the one useful line, `kind` its class if known.

    `advice` is an operator's next step; with a `kind` both stand in the record of the cell's death.
    """

    def __init__(self, reason: str, kind: str = "", advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind
        self.advice = advice


class SliceProblem(StrEnum):
    """What is wrong with a slice, seen from a coordinator."""

    UNREACHABLE = "unreachable"
    """Nobody answers there in time."""
    NOT_A_DOOR = "not_a_door"
    """Something else listens there, or a door of another version."""
    UNKNOWN_KEY = "unknown_key"
    """It is a door, and of a bee that the egg does not name."""
    NOT_LET_IN = "not_let_in"
    """The slice's bee does not know this one."""
    REFUSED = "refused"
    """It won't be leased, or the lease is over."""
    LOST = "lost"
    """The connection went in the middle of a question."""


class SliceError(HumError):
    """A slice can't be used now; the message is one sentence that names its endpoint."""

    def __init__(self, problem: SliceProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class TurnError(HumError):
    """Ends one turn with an `error` tone of this code; other turns are untouched.

    The message may quote what the asker or the engine said: it is made one line.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        subtype: str = "",
        usage: Mapping[str, Any] | None = None,
    ) -> None:
        self.message = one_line(message)
        super().__init__(self.message)
        self.code = code
        self.subtype = subtype or code.value
        self.usage = usage


class FrameError(HumError):
    """A frame between bee and tender, or a line at a slice's door, that can't be read."""


def one_line(text: str) -> str:
    """Returns `text` on one line, without control characters, cut to MAX_MESSAGE characters."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
