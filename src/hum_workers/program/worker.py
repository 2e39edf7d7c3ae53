"""Worker: what one kind of worker brings to the common command line. Everything else is shared.

The functions are called only when they are needed: `--help` loads no eggs, no engine, no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hum_workers.cells.plan import Raiser
    from hum_workers.program.annex import Annex, Home
    from hum_workers.program.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Look:
    """A flag of the command line that shows something of the eggs and starts no engine."""

    flag: str
    help: str
    run: Callable[[Sequence[Any], Callable[[object], None]], int]
    """Prints by the second argument, and returns the exit code."""
    exits: str
    """What its exit codes other than 0 and 2 mean, as `--help` says it."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One kind of worker; `Any` stands for its own kind of egg."""

    hive: str
    about: str
    egg: Callable[[], type[Any]]
    """Returns the pydantic model of its eggs."""
    raiser: Callable[[Any, Path, Path | None, Mapping[str, str]], Raiser]
    """Makes the raiser of an egg: egg, private folder, log file of the engine, environment."""
    slots: Callable[[Any], int]
    """Turns of an egg that may be inside its engine at once."""
    default_max_tokens: Callable[[Any], int | None]
    tool_parser: Callable[[Any], bool]
    """Whether the engine of an egg can tell tool calls from text."""
    check: Callable[[Sequence[Any], Mapping[str, str]], list[Finding]]
    show: Callable[[Any, Path, Mapping[str, str]], str]
    """Returns the engine's command line and environment, secrets hidden."""
    engine_version: Callable[[], str]
    annex: Callable[[Home, Sequence[Any]], Annex] | None = None
    """Makes what a bee with these eggs keeps beside its cells."""
    looks: Sequence[Look] = ()
    """Further flags that print something and exit."""
