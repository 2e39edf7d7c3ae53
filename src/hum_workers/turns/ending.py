"""How a turn ends: by a `finish` or by an `error`, with what the engine counted (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hum_workers.errors import TurnError

Usage = Mapping[str, Any]
"""Tokens as the engine counts them: `input` without `cached`, `output`, `cached`."""
COUNTED = ("input", "output", "cached")


@dataclass(frozen=True)
class Finish:
    """An ending by `finish`: the engine's reason, or `cancelled`, and the engine's usage."""

    reason: str
    usage: Usage | None = None


Ending = Finish | TurnError


def with_usage(ending: Ending, usage: Usage | None) -> Ending:
    """Returns the ending with what was counted until then."""
    if usage is None:
        return ending
    if isinstance(ending, Finish):
        return replace(ending, usage=usage)
    return TurnError(ending.code, ending.message, subtype=ending.subtype, usage=usage)


def added(sum_: Usage | None, more: Usage | None) -> Usage | None:
    """Returns the usage of both, None when neither was counted."""
    if sum_ is None or more is None:
        return more if sum_ is None else sum_
    return {key: (sum_.get(key) or 0) + (more.get(key) or 0) for key in COUNTED}
