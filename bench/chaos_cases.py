"""What is done to a cell, in which state, and in which kind of confinement (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WAYS = (("namespace", "auto"), ("namespace", "off"), ("guard", "auto"), ("guard", "off"))
"""[limits] confine and cgroup."""
WILD = {"children": 3, "double_fork": True, "ignore_sigterm": True}
"""Deaf to SIGTERM, EngineCore and two workers, and one that forked twice and left the session."""
WILD_MEMBERS = 5
LIMIT = 5.0
"""Seconds that are allowed from the act to no live member."""


@dataclass(frozen=True)
class Case:
    """One scenario. `act` names who gets SIGKILL, or `stop` (SIGTERM to the bee) or `itself`."""

    name: str
    act: str
    moment: str = "streaming"
    """When: `streaming`, `ready`, or `loading`, which is as soon as all members are there."""
    fake: Mapping[str, Any] = field(default_factory=lambda: WILD)
    members: int = WILD_MEMBERS
    """Processes to wait for before the act."""
    prompt: Mapping[str, Any] = field(default_factory=lambda: {"tokens": 100_000, "rate": 50})
    covered: tuple[str, ...] = ("namespace", "guard")
    """Kinds of confinement that promise to cover it."""


def _kill(act: str, **more: Any) -> Case:
    return Case(f"SIGKILL of {act}", act, **more)


KILLS = (
    _kill("bee"),
    _kill("tender"),
    _kill("API server"),
    _kill("EngineCore"),
    _kill("worker"),
    _kill("guard"),
    _kill("bee + tender"),
    _kill("tender + guard"),
    _kill("bee + tender + guard", covered=("namespace",)),
)
LOADING = tuple(
    Case(f"SIGKILL of {act}, loading", act, "loading", {**WILD, "hang_at": "load"})
    for act in ("bee", "tender", "bee + tender", "EngineCore")
)
STOPS = (
    Case("stop of a deaf engine", "stop"),
    Case("stop, hangs at its start", "stop", "loading", {"hang_at": "start"}, 1),
    Case("stop, hangs at health", "stop", "loading", {**WILD, "hang_at": "health"}),
    Case("stop, hangs in mid-stream", "stop", prompt={"tokens": 9, "hang": "mid_stream"}),
    Case("stop amid a flood of output", "stop", "ready", {**WILD, "flood_ready": 1 << 31}),
    Case("stop after a line of 10 MB", "stop", "ready", {**WILD, "long_line": 10_000_000}),
    Case("SIGKILL of bee amid a flood", "bee", "ready", {**WILD, "flood_ready": 1 << 31}),
)
DEATHS = (
    *(
        Case(
            f"dies at stage {stage}",
            "itself",
            "loading",
            {**WILD, "exit_at": {"stage": stage, "code": 1, "line": "Oops", "after": 0.5}},
            1,
        )
        for stage in ("start", "config", "engine", "load", "kv", "listen", "ready")
    ),
    Case("dies in mid-stream", "itself", prompt={"tokens": 200, "rate": 100, "die": "mid_stream"}),
)
ALL = (*KILLS, *LOADING, *STOPS, *DEATHS)
SHORT = (KILLS[0], KILLS[3], KILLS[6], LOADING[1], STOPS[3], STOPS[5], DEATHS[3])
REAL = tuple(
    case
    for case in KILLS
    if case.act in ("bee", "tender", "API server", "EngineCore", "worker", "bee + tender")
)
