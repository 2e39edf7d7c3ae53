"""Weights judged by their headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hum_workers.vllm_worker.safetensors import Damaged, look, read_header
from tests.vllm_worker.hatchery import safetensors


def index(folder: Path, **weights: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


def test_whole_weights_have_no_problems(tmp_path: Path) -> None:
    file = safetensors(tmp_path / "model.safetensors", {"a": 10, "b": 6})
    assert set(read_header(file)) == {"a", "b"}
    found = look(tmp_path)
    assert (found.files, found.size, found.problems) == (1, file.stat().st_size, ())


def test_a_folder_without_weights_holds_none(tmp_path: Path) -> None:
    assert look(tmp_path).files == 0


@pytest.mark.parametrize(("keep", "said"), [(-1, "cut off: "), (20, "header"), (3, "no safete")])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, keep: int, said: str) -> None:
    file = safetensors(tmp_path / "model.safetensors", {"a": 100})
    file.write_bytes(file.read_bytes()[:keep])
    (problem,) = look(tmp_path).problems
    assert problem.startswith(f"{file} is ")
    assert said in problem


@pytest.mark.parametrize("header", [b"{", b'{"a":{}}', b'{"a":{"data_offsets":[0,"x"]}}', b"[]"])
def test_a_header_of_another_form_is_told(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(Damaged, match="can't be read"):
        read_header(file)


def test_a_text_file_is_no_weights(tmp_path: Path) -> None:
    """What is left of a file whose download stored a pointer only."""
    (tmp_path / "x.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid")
    assert "is no safetensors file" in look(tmp_path).problems[0]


def test_files_of_the_index_that_are_absent_are_named(tmp_path: Path) -> None:
    safetensors(tmp_path / "one.safetensors", {"a": 4})
    index(tmp_path, a="one.safetensors", b="two.safetensors")
    assert "two.safetensors can't be read: No such file" in look(tmp_path).problems[0]


def test_tensors_of_the_index_that_are_absent_are_counted(tmp_path: Path) -> None:
    safetensors(tmp_path / "one.safetensors", {"a": 4})
    index(tmp_path, a="one.safetensors", b="one.safetensors", c="one.safetensors")
    assert "names 2 tensors that no file holds, b first" in look(tmp_path).problems[0]


def test_an_index_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert "can't be read as an index" in look(tmp_path).problems[0]
