"""GPUs of llama.cpp's programs: noted, and hidden from them while they are set aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from hum_workers.errors import NoDevice
from hum_workers.llama_rpc_worker.gpus import given
from hum_workers.spec import CellSpec
from tests.gpus import host
from tests.tenders import spec

A, B = "GPU-aa", "GPU-bb"
CUDA = ["CUDA0", "CUDA1"]
AWAY = {A: "set aside after cell x-1 died: held"}


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellSpec:
    host(monkeypatch, tmp_path, A, B)
    return spec(tmp_path)


def test_a_program_has_all_gpus_that_it_sees(plain: CellSpec) -> None:
    assert given(plain, CUDA, [], {}).devices == [A, B]
    plain.env["CUDA_VISIBLE_DEVICES"] = "1"
    assert given(plain, CUDA, [], AWAY).devices == [B]


@pytest.mark.parametrize(("built", "named"), [([], []), (["Vulkan0"], []), (CUDA, ["CPU"])])
def test_one_that_uses_no_gpu_has_none(plain: CellSpec, built: list[str], named: list[str]) -> None:
    assert given(plain, built, named, AWAY) is plain


def test_a_gpu_that_is_set_aside_is_hidden_from_it(plain: CellSpec) -> None:
    raised = given(plain, CUDA, [], AWAY)
    assert (raised.devices, raised.env["CUDA_VISIBLE_DEVICES"]) == ([B], B)


def test_one_whose_devices_are_named_waits_instead_as_the_names_are_numbers(
    plain: CellSpec,
) -> None:
    with pytest.raises(NoDevice, match="GPU-aa is set aside after cell x-1 died: held"):
        given(plain, CUDA, ["CUDA1"], AWAY)


def test_without_any_gpu_left_it_waits(plain: CellSpec) -> None:
    with pytest.raises(NoDevice, match="GPU-bb is gone"):
        given(plain, CUDA, [], {**AWAY, B: "gone"})
