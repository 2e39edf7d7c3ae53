"""docs/lifecycle.md, held to the code: the table of states, and the names it sends readers to."""

from __future__ import annotations

import importlib
import re
from itertools import pairwise
from pathlib import Path

import pytest

from hum_workers.cells import cell
from hum_workers.cells.states import MOVES, CellState, moved

PAGE = (Path(__file__).parent.parent / "docs" / "lifecycle.md").read_text()
SOURCE = Path(cell.__file__).read_text()


def rows() -> list[tuple[str, str]]:
    table = [line for line in PAGE.splitlines() if line.startswith("| ")][2:]
    cells = [[part.strip() for part in line.strip("|").split("|")] for line in table]
    return [(row[0], row[1]) for row in cells]


def names() -> list[str]:
    found = set(re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`", PAGE))
    keys = {"lifecycle.start_timeout", "lifecycle.idle_timeout", "lifecycle.drain_timeout"}
    return sorted(found - keys - {"bee.max_procs", "worker.cell.emerged"})


def test_the_table_has_each_move_once() -> None:
    allowed = [(state.value, to.value) for state, reached in MOVES.items() for to in reached]
    assert sorted(rows()) == sorted(allowed)
    assert set(MOVES) == set(CellState)


def test_a_cell_changes_its_state_by_these_moves_alone() -> None:
    writes = re.findall(r"self\.state(?::[^=]+)? = (.+)", SOURCE)
    assert writes == ["CellState.COLD", "moved(self.state, to)"]


def test_no_cell_comes_back_and_none_goes_another_way() -> None:
    for state in CellState:
        for to in CellState:
            if to in MOVES[state]:
                assert moved(state, to) is to
                continue
            with pytest.raises(ValueError, match=f"is {state} never becomes {to}"):
                moved(state, to)
    order = list(CellState)
    assert all(order.index(to) > order.index(state) for state in MOVES for to in MOVES[state])
    assert all(to in MOVES[state] for state, to in pairwise(order))


@pytest.mark.parametrize("name", names())
def test_every_name_is_in_the_code(name: str) -> None:
    module, *rest = name.split(".")
    found: object = importlib.import_module(f"hum_workers.{module}")
    while rest and not hasattr(found, rest[0]):
        module = f"{module}.{rest.pop(0)}"
        found = importlib.import_module(f"hum_workers.{module}")
    for part in rest:
        found = getattr(found, part)
