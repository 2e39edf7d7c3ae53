"""NVIDIA devices by UUID, and which of them a cell gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hum_workers.devices import (
    Gpu,
    choose,
    cores_of,
    nvidia_devices,
    parse_smi,
    usable_cores,
    visible,
)
from hum_workers.errors import NoDevice, UsageError

A, B, C = Gpu(0, "GPU-aa11", 80, "H"), Gpu(1, "GPU-bb22", 80, "H"), Gpu(2, "GPU-bb33", 80, "H")
ALL = [A, B, C]


def smi(folder: Path, script: str) -> dict[str, str]:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_devices_are_asked_of_nvidia_smi(tmp_path: Path) -> None:
    env = smi(tmp_path, "echo '1, GPU-b, 143771, NVIDIA H200'; echo '0, GPU-a, [N/A], NVIDIA GB10'")
    assert nvidia_devices(env) == [
        Gpu(0, "GPU-a", None, "NVIDIA GB10"),
        Gpu(1, "GPU-b", 143771 * 1024**2, "NVIDIA H200"),
    ]


def test_lines_of_another_form_are_left_out() -> None:
    assert parse_smi("No devices were found\n\n, , ,\n0, GPU-a\n") == []


@pytest.mark.parametrize("script", ["exit 9", "exec sleep 60"])
def test_without_an_answer_the_drivers_files_count(tmp_path: Path, script: str) -> None:
    for bus, uuid in (("0000:81:00.0", "GPU-bb"), ("0000:01:00.0", "GPU-aa")):
        folder = tmp_path / "driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t H200\nGPU UUID: \t {uuid}\n")
    found = nvidia_devices(smi(tmp_path, script), timeout=0.2, proc=tmp_path)
    assert found == [Gpu(0, "GPU-aa", None, "H200"), Gpu(1, "GPU-bb", None, "H200")]


def test_a_host_without_nvidia_has_none(tmp_path: Path) -> None:
    assert nvidia_devices({"PATH": str(tmp_path)}, proc=tmp_path) == []


@pytest.mark.parametrize(
    ("inherited", "left"),
    [
        (None, ALL),
        ("", []),
        ("-1", []),
        ("2,0", [C, A]),
        ("GPU-bb2", [B]),
        ("GPU-bb", []),
        ("0,9,1", [A]),
        ("MIG-1-2", [Gpu(-1, "MIG-1-2")]),
    ],
)
def test_an_inherited_list_is_read_as_cuda_reads_it(inherited: str | None, left: list[Gpu]) -> None:
    assert visible(ALL, inherited) == left


def test_devices_are_chosen_by_index_or_uuid_in_the_order_asked() -> None:
    assert choose(["2", "GPU-aa11"], ALL, count=2) == [C, A]
    assert choose([1], ALL, count=1, inherited="1,2") == [B]


def test_without_a_wish_the_first_visible_ones_are_taken() -> None:
    assert choose([], ALL, count=2) == [A, B]
    assert choose([], ALL, count=1, inherited="2") == [C]
    assert choose([], [], count=2) == []
    assert choose([], ALL, count=1, inherited="") == []


@pytest.mark.parametrize(
    ("asked", "count", "inherited", "said"),
    [
        (["7"], 1, None, r"7 is not on this host; there is 0 GPU-aa11, 1"),
        (["GPU-cc"], 1, None, "GPU-cc is not on this host"),
        (["0"], 1, "1,2", "0 is outside CUDA_VISIBLE_DEVICES=1,2"),
        (["0", "GPU-aa11"], 2, None, "named twice"),
        (["0"], 2, None, r"names 1 and \[parallel\] needs 2"),
        ([], 4, None, r"needs 4 GPUs and 3 can be used"),
    ],
)
def test_a_wish_that_can_not_be_is_refused(
    asked: list[str], count: int, inherited: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        choose(asked, ALL, count=count, inherited=inherited)


def test_a_device_that_is_set_aside_is_passed_over() -> None:
    assert choose([], ALL, count=2, away={A.uuid: "set aside"}) == [B, C]
    assert choose(["1"], ALL, count=1, away={A.uuid: "set aside"}) == [B]


@pytest.mark.parametrize(
    ("asked", "there", "count", "said"),
    [
        ([], [A], 1, r"1 needed, 0 free\): GPU-aa11 is set aside: why"),
        ([], [A, B], 2, r"2 needed, 1 free"),
        (["0"], ALL, 1, r"\[placement\] gpu\): GPU-aa11 is set aside"),
        ([], [], 1, "1 needed, 0 free"),
        (["0"], [], 1, "0 is not seen now"),
    ],
)
def test_a_cell_that_lacks_only_what_is_set_aside_may_come_later_and_never_on_the_cpu(
    asked: list[str], there: list[Gpu], count: int, said: str
) -> None:
    with pytest.raises(NoDevice, match=said):
        choose(asked, there, count=count, away={A.uuid: "set aside: why"})


def test_an_absent_device_on_a_host_without_any() -> None:
    with pytest.raises(UsageError, match="there is no NVIDIA device"):
        choose(["0"], [], count=1)


def test_lists_of_cores_are_read() -> None:
    assert cores_of("0-2,8") == [0, 1, 2, 8]
    assert cores_of(None)
    with pytest.raises(UsageError, match="is not a list like 0-3,8"):
        cores_of("all")


def test_threads_are_bound_to_no_core_that_is_not_ours() -> None:
    ours = sorted(os.sched_getaffinity(0))
    assert usable_cores(f"{ours[0]},8000") == ours[:1]
    assert usable_cores(None) == ours
