"""Memory of several cells at once: what lives together has to fit together."""

from __future__ import annotations

import pytest

from hum_workers.program.findings import Finding
from hum_workers.program.memory_check import (
    Cells,
    DeviceNeed,
    HostNeed,
    at_once,
    check_device_sums,
    check_host_sum,
)

GIB = 1024**3
LARGE, SMALL = HostNeed("large", 10 * GIB, 12 * GIB), HostNeed("small", 2 * GIB, 4 * GIB)


def host(*needs: HostNeed, cells: int, free: int, total: int = 32) -> list[Finding]:
    at_most = Cells(cells, len(needs))
    found = check_host_sum(needs, at_most, free=free * GIB, total=total * GIB, advice="lower them")
    return list(found)


@pytest.mark.parametrize(
    ("cells", "chosen"), [(1, [1]), (2, [1, 2]), (3, [0, 1, 2]), (5, [0, 1, 2, 1, 1])]
)
def test_the_largest_live_at_once_and_what_is_beyond_the_eggs_is_of_the_largest(
    cells: int, chosen: list[int]
) -> None:
    assert at_once([1, 9, 5], Cells(cells, 3)) == chosen


def test_one_cell_alone_is_its_eggs_own_matter() -> None:
    assert host(LARGE, SMALL, cells=1, free=1) == []
    assert host(LARGE, cells=1, free=1) == []


def test_cells_that_fit_are_one_ok() -> None:
    (found,) = host(LARGE, SMALL, cells=2, free=16)
    assert str(found) == "ok       memory: large and small at once need 16 GiB of 16 GiB free"


def test_cells_that_fit_only_into_an_empty_host_are_a_warning() -> None:
    (found,) = host(LARGE, SMALL, cells=2, free=15)
    assert (found.level, "15 GiB are free here; lower them" in found.message) == ("warning", True)


def test_cells_that_the_host_can_never_hold_are_an_error() -> None:
    (found,) = host(LARGE, SMALL, cells=2, free=8, total=11)
    assert (found.level, "this host has 11 GiB" in found.message) == ("error", True)


def test_cells_of_one_egg_count_as_often_as_they_live() -> None:
    (found,) = host(LARGE, cells=3, free=8, total=29)
    assert found.message.startswith("3 of large at once need 36 GiB")
    assert found.level == "error"


def test_nothing_is_said_of_a_host_whose_memory_is_unknown() -> None:
    assert host(LARGE, SMALL, cells=2, free=0, total=0) == []


def device(egg: str, held: int, free: int = 0, name: str = "GPU 0") -> DeviceNeed:
    return DeviceNeed(egg, name, 80 * GIB, held * GIB, free * GIB)


def devices(*needs: DeviceNeed, cells: int = 2) -> list[str]:
    eggs = len({need.egg for need in needs})
    found = list(check_device_sums(needs, Cells(cells, eggs), advice="take others"))
    assert all(finding.level == "error" for finding in found)
    return [finding.message for finding in found]


def test_two_cells_that_share_a_device_have_to_fit_on_it() -> None:
    assert devices(device("a", 40), device("b", 40)) == []
    assert devices(device("a", 40), device("b", 41)) == [
        "a and b at once need 81 GiB of GPU 0, which has 80 GiB; take others"
    ]


def test_what_must_be_free_at_the_start_of_the_second_counts() -> None:
    assert devices(device("a", 10), device("b", 10, 70)) == []
    assert len(devices(device("a", 11), device("b", 10, 70))) == 1


def test_cells_on_devices_of_their_own_or_one_after_the_other_do_not_meet() -> None:
    assert devices(device("a", 70), device("b", 70, name="GPU 1")) == []
    assert devices(device("a", 70), device("b", 70), cells=1) == []


def test_a_device_that_one_egg_has_several_cells_on_is_told() -> None:
    assert devices(device("a", 50))[0].startswith("2 of a at once need 100 GiB of GPU 0")
