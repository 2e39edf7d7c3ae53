"""Blame: what kind of death means what, for the next raise and for the operator (pure).

One table. A crash may be bad luck: it is tried again after a pause. A mistake of the egg is the
same next time: never. Something that was in the way for a moment: again at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hum_workers.figures.counts import Death

START_TRIES = 3
"""Starts in a row that may fail before an egg of which no cell was ever ready is given up."""
AT_ONCE = 3
"""Raises in a row without a pause."""


class Again(Enum):
    """Whether a cell is raised again."""

    NEVER = "never"
    AT_ONCE = "at once"
    PAUSED = "after a pause"


@dataclass(frozen=True)
class Diagnosis:
    """What an engine's last lines say: the one line, its class if they tell, how sure that is."""

    line: str
    death: Death | None = None
    vague: bool = False
    """Nothing of the engine's own says why: what the kernel saw counts more."""


Diagnose = Callable[[Sequence[str]], Diagnosis]

RULES: dict[Death, tuple[Again, str]] = {
    Death.STOPPED: (Again.NEVER, ""),
    Death.START_FAILED: (Again.NEVER, "the engine's log has the rest"),
    Death.USAGE: (Again.NEVER, "correct the egg's key or [engine] args"),
    Death.MODEL: (Again.NEVER, "correct [model] or what its folder holds"),
    Death.ROOM: (
        Again.NEVER,
        "give the cache more room, or lower context or turns at once",
    ),
    Death.START_TIMEOUT: (Again.PAUSED, "the engine's log shows what it was at"),
    Death.PORT: (Again.AT_ONCE, "it is raised again at once"),
    Death.MEMORY: (
        Again.PAUSED,
        "raise [limits] memory, or lower what the engine takes",
    ),
    Death.GPU_MEMORY: (
        Again.PAUSED,
        "lower what the engine takes of the device, or free the device of others",
    ),
    Death.STALLED: (
        Again.PAUSED,
        "raise [lifecycle] stall_timeout if one step may take that long",
    ),
    Death.KILLED: (Again.PAUSED, "look for who sent it: dmesg, a job scheduler, an operator"),
    Death.SIGNAL: (Again.PAUSED, "a crash inside the engine: its log has the stacks"),
    Death.EXIT: (Again.PAUSED, "the engine's log has the rest"),
    Death.TENDER: (Again.PAUSED, "look for who ended it: dmesg, an operator"),
    # What askers may do at any time must not bring longer and longer pauses.
    Death.CANCEL: (Again.AT_ONCE, "nothing: what was cancelled would have held up the others"),
    # Not its own fault: it waits for a whole route, and not for its own bad luck to pass.
    Death.SLICE: (Again.AT_ONCE, "look into the log of that slice's bee"),
}


SILENT = "there is no log of it: the engine itself said nothing"
"""Instead of an advice to read its log."""


def advice(death: Death, words: Mapping[str, str] | None = None, *, said: bool = True) -> str:
    """Returns the next step of an operator, as half a sentence.

    Args:
        words: a worker's own, by class: they name the keys of its eggs.
        said: the engine has a log.
    """
    text = (words or {}).get(death) or RULES[death][1]
    return text if said or " log" not in text else SILENT


def again(death: Death, *, was_ready: bool, failures: int) -> Again:
    """Returns whether to raise another cell after this death.

    `was_ready`: some cell of the egg was ready before, so the egg is right as such; a failed start
    of no known class is then tried again. `failures` counts deaths in a row, this one included.
    """
    rule = RULES[death][0]
    if rule is Again.AT_ONCE:
        rule = Again.AT_ONCE if failures <= AT_ONCE else Again.PAUSED
    if death is Death.START_FAILED and was_ready:
        return Again.PAUSED
    if not was_ready and failures >= START_TRIES and rule is Again.PAUSED:
        return Again.NEVER
    return rule
