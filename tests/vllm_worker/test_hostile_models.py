"""Model folders that were made to hang or break `--check`: findings in words, at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hum_workers.vllm_worker.model_check import check_model
from hum_workers.vllm_worker.safetensors import look
from tests.vllm_worker.hatchery import CONFIG, egg, model_folder, safetensors

DUMMY = "[engine]\nargs = ['--load-format', 'dummy']"
INDEX = "model.safetensors.index.json"


def said(folder: Path, text: str = DUMMY) -> str:
    found = check_model(egg(folder, text, model=folder / "m"), {}, "small model")
    return "\n".join(str(finding) for finding in found)


def config(folder: Path, **values: Any) -> None:
    model = model_folder(folder / "m")
    (model / "config.json").write_text(json.dumps({**CONFIG, **values}))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_attention_heads": 9_999_999_999}, "9999999999 attention heads can't be split so"),
        ({"num_attention_heads": 10**400}, "LlamaForCausalLM"),
        ({"rope_scaling": {"factor": 1e308}}, "a rope factor of 1e+308 is no real one"),
        ({"dtype": ["float16"] * 1000}, "is not known here"),
        ({"dtype": {"a": 1}}, "dtype {'a': 1} is not known here"),
        ({"architectures": ["x" * 1000] * 10_000}, "…"),
    ],
)
def test_a_config_of_absurd_values_is_judged_in_words(
    tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    config(tmp_path, **values)
    text = said(tmp_path, f"[parallel]\ntensor = 7\n{DUMMY}")
    text = text if "heads" in values else text + said(tmp_path, f"max_model_len = 5000\n{DUMMY}")
    assert words in text + said(tmp_path)
    assert len(text) < 20_000


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_file_that_would_be_read_for_ever_is_told(tmp_path: Path, name: str, kind: str) -> None:
    file = model_folder(tmp_path / "m") / name
    file.unlink(missing_ok=True)
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    assert "is no regular file" in said(tmp_path)


def test_a_config_that_is_huge_or_nested_without_end_is_told(tmp_path: Path) -> None:
    file = model_folder(tmp_path / "m") / "config.json"
    file.write_text('{"a":' + "[" * 1_000_000)
    assert "is no JSON object" in said(tmp_path)
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    assert "is larger than 16,777,216 bytes" in said(tmp_path)


def test_weights_that_are_a_pipe_or_a_device_are_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").symlink_to("/dev/zero")
    problems = look(tmp_path).problems
    assert [problem.endswith("is no regular file") for problem in problems] == [True, True]
    (tmp_path / INDEX).symlink_to("/dev/zero")
    assert look(tmp_path).problems == (f"{tmp_path / INDEX} can't be read: is no regular file",)


@pytest.mark.parametrize("name", ["../other/x", "/etc/passwd", "a\0b", "", "a/../../b"])
def test_an_index_that_names_files_outside_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"t": name}}))
    (problem,) = look(tmp_path).problems
    assert "names a file outside its folder" in problem
    assert "\0" not in problem


def test_an_index_of_many_absent_files_is_a_few_sentences(tmp_path: Path) -> None:
    names = {str(n): f"{n}.safetensors" for n in range(10_000)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    assert len(look(tmp_path).problems) == 21


@pytest.mark.parametrize("offsets", ["[0, 1e300]", "[0, 1.5]", "[[], {}]", "null", "[0]"])
def test_offsets_of_another_form_are_told(tmp_path: Path, offsets: str) -> None:
    file = safetensors(tmp_path / "model.safetensors", {"a": 10})
    header = b'{"__metadata__": {"format": "pt"}, "a": {"data_offsets": %b}}' % offsets.encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert look(tmp_path).problems == (f"{file} has a header that can't be read",)
