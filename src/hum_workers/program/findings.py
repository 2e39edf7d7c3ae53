"""What `--check` found: one line each, for a person and for an exit code (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from hum_workers.errors import HumError

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    subject: str
    """What it is about, the egg's name first where it is of one egg: `small model`, `socket`."""
    message: str

    def __str__(self) -> str:
        return f"{self.level:<8} {self.subject}: {self.message}"


def safely(subject: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yields what a look finds; its failure becomes a finding, so that the others still run."""
    try:
        yield from look()
    except HumError as error:
        yield Finding("error", subject, str(error))
    except Exception as error:
        yield Finding(
            "warning", subject, f"could not be looked at: {type(error).__name__}: {error}"
        )


def amount(size: float) -> str:
    """Returns bytes for a person, in the unit that suits them: `1.5 GiB`."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    step = 0
    while step < len(units) - 1 and size >= 1000:
        size /= 1024
        step += 1
    digits = 0 if step == 0 or size >= 100 else 1
    return f"{size:.{digits}f}".removesuffix(".0") + f" {units[step]}"


def size_value(size: float) -> str:
    """Returns bytes as an egg writes them, rounded up: `"29MiB"`."""
    whole = ceil(size / 1024**3)
    if whole * 1024**3 <= size * 1.02:
        return f'"{whole}GiB"'
    return f'"{ceil(size / 1024**2)}MiB"'
