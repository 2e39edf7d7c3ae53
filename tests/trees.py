"""Ways to confine a scripted tree, and the tree's command line: shared by tests of deaths."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hum_workers.process import confine
from tests.liveness import Liveness

FAKES = Path(__file__).parent / "fakes"
WILD = str(FAKES / "wild_tree.py")
WAYS = [(how, cgroup) for how in ("namespace", "guard") for cgroup in ("auto", "off")]


def confinement(how: str, cgroup: str, memory: int | None = None) -> confine.Confinement:
    """Returns the way asked for, or skips with the host's reason."""
    allows = confine.survey()
    if how == "namespace" and not allows.namespace:
        pytest.skip(f"no PID namespaces here: {allows.refusal}")
    if cgroup == "auto" and not allows.unified:
        pytest.skip("no cgroup v2 folder may be made here")
    return confine.plan(allows, confine=how, cgroup=cgroup, memory=memory, name="test")


def wild(alive: Liveness, *options: str) -> list[str]:
    return [sys.executable, WILD, str(alive.path), *options]


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]
