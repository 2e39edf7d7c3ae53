"""Figures against budgets: percentiles, the table, the JSON line at the end (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Figure:
    """One row. Several values (p50 and p99, bee and tender) have a budget each."""

    name: str
    values: tuple[float, ...]
    unit: str
    budgets: tuple[float | None, ...] = ()
    """Aligned with `values`; None where a value is shown for comparison only."""
    at_least: bool = False
    """The budgets are lower bounds."""
    load: str = ""
    """What ran meanwhile, without which the figure says little."""

    @property
    def ok(self) -> bool | None:
        """Whether every budget is kept; None without one."""
        pairs = [(v, b) for v, b in zip(self.values, self.budgets, strict=False) if b is not None]
        if not pairs:
            return None
        return all(v >= b if self.at_least else v <= b for v, b in pairs)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value at `share` (0 to 1) of the sorted values; the nearest one, no blend."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def p50_p99(values: Sequence[float]) -> tuple[float, float]:
    """Returns median and 99th percentile."""
    return median(values), percentile(values, 0.99)


def spread(values: Sequence[float]) -> str:
    """Returns lowest and highest of a few runs, for a person."""
    return f"{min(values):.3g} to {max(values):.3g} in {len(values)} runs"


def _numbers(values: Iterable[float | None]) -> str:
    return " / ".join("–" if v is None else _number(v) for v in values)


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def table(figures: Sequence[Figure]) -> str:
    """Returns the table for a person: figure, measured, budget, ok or over, load."""
    words = {True: "ok", False: "OVER", None: ""}
    rows = [("figure", "measured", "budget", "", "load")]
    for each in figures:
        bound = "≥ " if each.at_least else "≤ "
        budget = bound + _numbers(each.budgets) if each.ok is not None else ""
        measured = f"{_numbers(each.values)} {each.unit}"
        rows.append((each.name, measured, budget, words[each.ok], each.load))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in rows
    )


def as_json(bench: str, figures: Sequence[Figure], **facts: object) -> str:
    """Returns the one line for a machine."""
    rows = [
        {
            "figure": each.name,
            "values": [round(value, 6) for value in each.values],
            "unit": each.unit,
            "budgets": list(each.budgets),
            "at_least": each.at_least,
            "ok": each.ok,
            "load": each.load,
        }
        for each in figures
    ]
    over = sum(each.ok is False for each in figures)
    return json.dumps({"bench": bench, **facts, "over": over, "figures": rows})
