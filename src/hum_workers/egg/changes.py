"""What has changed between eggs that were read twice: what that means for each cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hum_workers.egg import bee_settings, log_settings, metrics_settings
from hum_workers.egg.tables import Egg

IN_PLACE = {
    "bee": None,  # but for `models` it is the process's
    "log": None,
    "tools": None,
    "limits": {"turn_timeout", "wait_timeout", "max_waiting", "max_waiting_per_sid"},
    "lifecycle": {"start_timeout", "stop_grace", "drain_timeout", "idle_timeout"},
    "media": {"max_count", "max_bytes"},
    "metrics": {"listen"},
    "model": {"max_tokens"},
}
"""Keys that a living cell need not know; None: the whole table."""


@dataclass(frozen=True)
class Changes:
    """By name of the egg. `process` are keys that only a restart of the bee can change."""

    process: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    cells: dict[str, list[str]] = field(default_factory=dict)
    """Eggs whose cell is replaced, and the keys for which it is."""
    others: dict[str, list[str]] = field(default_factory=dict)
    """Eggs that changed in what takes effect at once."""


def changes(before: Sequence[Egg], now: Sequence[Egg]) -> Changes:
    """Compares the eggs of a bee with those that were read again."""
    found = Changes(process=list(_process(before, now)))
    old = {egg.name: egg for egg in before}
    names = {egg.name for egg in now}
    found.gone.extend(name for name in old if name not in names)
    for egg in now:
        if egg.name not in old:
            found.new.append(egg.name)
            continue
        keys = list(_keys(old[egg.name], egg))
        if cell := [key for key in keys if _needs_cell(key, old[egg.name], egg)]:
            found.cells[egg.name] = cell
        elif keys:
            found.others[egg.name] = keys
    return found


def _process(before: Sequence[Egg], now: Sequence[Egg]) -> Iterator[str]:
    tables: list[tuple[str, Any, Any]] = [
        ("bee", bee_settings(before), bee_settings(now)),
        ("log", log_settings(before), log_settings(now)),
        ("metrics", metrics_settings(before), metrics_settings(now)),
    ]
    for name, old, new in tables:
        for key in type(old).model_fields:
            own = (name, key) in {("bee", "models"), ("bee", "max_procs"), ("metrics", "interval")}
            if not own and getattr(old, key) != getattr(new, key):
                yield f"{name}.{key.rstrip('_')}"


def _keys(old: Egg, new: Egg) -> Iterator[str]:
    """Yields the keys of one egg that differ, those of the process left out."""
    for table in type(new).model_fields:
        mine, its = getattr(old, table), getattr(new, table)
        if isinstance(its, list):
            if mine != its:
                yield table
            continue
        for key in type(its).model_fields:
            process = table == "log" or (table == "bee" and key != "models")
            if not process and getattr(mine, key) != getattr(its, key):
                yield f"{table}.{key}"


def _needs_cell(key: str, old: Egg, new: Egg) -> bool:
    table, _, name = key.partition(".")
    if key == "media.max_count":  # none at all: the engine is not asked what its model takes
        return not (old.media.max_count and new.media.max_count)
    if table not in IN_PLACE:
        return True
    names = IN_PLACE[table]
    return names is not None and name not in names
