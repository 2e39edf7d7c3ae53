"""When the memory of a dead cell counts as back, and who may have which device meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.cells.device_book import (
    MIB,
    TOLERANCE,
    Aside,
    DeviceBook,
    Finding,
    Use,
    User,
    judge,
)
from hum_workers.cells.device_look import parse

GIB = 1024 * MIB
EMPTY = Use(4 * MIB)


def found(now: Use | None, before: Use | None = EMPTY, **facts: Any) -> Finding:
    left: Mapping[int, str] = facts.pop("left", {})
    living: Mapping[int, str] = facts.pop("living", {})
    return judge(now, before, left=left, living=living, shared=facts.pop("shared", False))


def test_memory_as_before_the_cell_is_back() -> None:
    assert found(EMPTY) == Finding(back=True, told="its memory is back")
    assert found(Use(EMPTY.memory + TOLERANCE)).back
    assert not found(Use(EMPTY.memory + TOLERANCE + 1)).back


def test_memory_of_a_process_that_has_ended_is_not_back_and_its_pid_is_named() -> None:
    finding = found(Use(40 * GIB, (User(77, 39 * GIB),)))
    assert not finding.back
    assert finding.pids == ("pid 77 (ended)",)
    assert finding.memory == 40 * GIB - EMPTY.memory
    assert finding.told == "40956 MiB more are in use than before the cell; pid 77 (ended)"


def test_memory_that_no_process_is_shown_for_is_not_back() -> None:
    finding = found(Use(40 * GIB))
    assert finding.told.endswith("no process is shown for it")


def test_a_process_of_the_cell_that_nothing_ends_holds_the_device_whatever_its_size() -> None:
    name = "VLLM::Worker (pid 7, state D)"
    finding = found(Use(4 * MIB, (User(7, None),)), left={7: name}, living={7: name})
    assert (finding.back, finding.pids) == (False, (name,))


def test_memory_of_others_that_live_is_theirs() -> None:
    now = Use(50 * GIB, (User(1, 20 * GIB), User(2, 30 * GIB)))
    assert found(now, living={1: "a", 2: "b"}).back
    assert not found(now, living={1: "a"}).back


def test_a_process_that_was_there_before_is_not_the_cells_though_it_is_not_seen_here() -> None:
    before = Use(20 * GIB, (User(1, 20 * GIB),))
    assert found(Use(30 * GIB, (User(1, 30 * GIB),)), before).back
    assert found(EMPTY, before).back


def test_where_the_driver_tells_no_sizes_the_processes_count_alone() -> None:
    finding = found(Use(40 * GIB, (User(1, None),)), living={1: "a"})
    assert (finding.back, finding.told) == (
        True,
        "no process of the cell is on it; sizes are not shown",
    )


def test_beside_other_cells_whose_processes_are_not_shown_nothing_is_proven_and_that_is_said() -> (
    None
):
    finding = found(Use(40 * GIB), shared=True)
    assert finding.back
    assert finding.told.startswith("not proven")
    assert not found(Use(40 * GIB, (User(1, GIB),)), shared=True, living={1: "other cell"}).back


def test_a_device_that_gives_no_answer_is_not_back() -> None:
    assert found(None) == Finding(back=False, told="nvidia-smi gives no answer for it")


sizes = st.integers(0, 80 * GIB)


@given(st.lists(sizes, max_size=4), st.lists(sizes, max_size=4), sizes, sizes)
def test_what_others_take_or_give_back_meanwhile_changes_no_finding(
    was: list[int], now: list[int], base: int, stuck: int
) -> None:
    others = {pid: f"pid {pid}" for pid in range(8)}
    before = Use(base + sum(was), tuple(User(pid, size) for pid, size in enumerate(was)))
    after = Use(base + stuck + sum(now), tuple(User(4 + pid, size) for pid, size in enumerate(now)))
    assert judge(after, before, left={}, living=others, shared=False).back == (stuck <= TOLERANCE)


def aside(cell: str, told: str = "held") -> Aside:
    finding = Finding(back=False, told=told)
    return Aside(uuid="A", cell=cell, finding=finding, since=0.0, before=None, left=())


def test_a_device_is_cleared_before_another_cell_may_have_it() -> None:
    book = DeviceBook()
    book.take("x-1", ["A", "B"], {"A": EMPTY})
    assert (book.shared("A"), book.shared("B"), book.clears(["A"])) == (True, False, False)
    assert book.died("x-1") == {"A": EMPTY}
    assert (book.shared("A"), book.clears(["B"]), book.clears(["B", "A"])) == (False, False, True)
    book.back("A", "x-1")
    assert not book.clears(["A"])
    assert book.died("x-1") == {}


def test_a_device_on_which_two_cells_died_is_back_when_the_memory_of_both_is() -> None:
    book = DeviceBook()
    book.set_aside(aside("x-1", "held by 1"))
    book.set_aside(aside("y-1", "held by 2"))
    book.back("A", "y-1")
    assert book.away == {"A": "set aside after cell x-1 died: held by 1"}
    book.back("A", "x-1")
    assert book.away == {}


@pytest.mark.parametrize("line", ["", "No running processes found", "GPU-a, [N/A], 3", "a, b"])
def test_lines_of_another_form_are_left_out(line: str) -> None:
    assert parse(f"GPU-a, 5\n{line}\n", f"{line}\nGPU-a, 7, [N/A]\nGPU-b, 1, 2\n") == {
        "GPU-a": Use(5 * MIB, (User(7, None),))
    }
