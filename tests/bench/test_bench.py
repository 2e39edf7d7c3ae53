"""The benches come out with figures; what the figures are is not asserted here."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from bench.clients import Take
from bench.figures import Figure, as_json, p50_p99, percentile, table
from bench.relay import sound
from scripts.rehearsal import RehearsalError
from tests.rig import ROOT


def run(module: str) -> tuple[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", module, "--short"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return "\n".join(lines[:-1]), json.loads(lines[-1])


def test_relay_measures_everything_it_has_a_budget_for() -> None:
    shown, told = run("bench.relay")
    assert told["bench"] == "relay"
    assert len(told["figures"]) == 10
    assert all(figure["figure"] in shown for figure in told["figures"])
    assert all(figure["ok"] is not None for figure in told["figures"])


def test_start_measures_help_and_hello() -> None:
    _, told = run("bench.start")
    assert [figure["unit"] for figure in told["figures"]] == ["ms", "ms"]
    assert all(value > 0 for figure in told["figures"] for value in figure["values"])


def test_rpc_door_measures_both_ways_and_the_loops() -> None:
    _, told = run("bench.rpc_door")
    assert [figure["unit"] for figure in told["figures"]] == [
        *("µs", "MB/s", "µs"),
        *("MB/s", "s/GB", "ms", "ms") * 2,
    ]
    assert all(value > 0 for figure in told["figures"] for value in figure["values"])


@pytest.mark.parametrize(
    ("values", "budgets", "at_least", "ok"),
    [
        ((0.5, 2.0), (0.7, 2.5), False, True),
        ((0.5, 2.6), (0.7, 2.5), False, False),
        ((0.5, 2.6), (0.7, None), False, True),
        ((0.98,), (0.99,), True, False),
        ((1.0,), (), False, None),
    ],
)
def test_a_figure_keeps_all_its_budgets_or_is_over(
    values: tuple[float, ...], budgets: tuple[float | None, ...], at_least: bool, ok: bool | None
) -> None:
    assert Figure("x", values, "ms", budgets, at_least=at_least).ok is ok


def test_the_table_and_the_line_name_what_is_over() -> None:
    figures = [Figure("slow", (3.0,), "ms", (2.0,)), Figure("shown", (1.0, 12_345.0), "MiB")]
    rows = table(figures).splitlines()
    assert "OVER" in rows[1]
    assert "12,345" in rows[2]
    assert json.loads(as_json("x", figures))["over"] == 1


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(101)]
    assert percentile(values, 0.99) == 99
    assert p50_p99(values) == (50, 99)


def test_an_answer_that_lost_text_is_no_figure() -> None:
    with pytest.raises(RehearsalError, match="5 characters sent, 4 came"):
        sound([Take(chars=4, sent=5)])
