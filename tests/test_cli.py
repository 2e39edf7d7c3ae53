"""The command line without an engine: help, versions, mistakes, checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hum_workers import __version__
from tests.leftovers import assert_nothing_left
from tests.llama_rpc_worker.gguf_files import gguf
from tests.llama_rpc_worker.test_binaries import install
from tests.rig import egg, worker
from tests.vllm_worker.hatchery import model_folder, safetensors
from tests.vllm_worker.test_check import for_cpus

LLAMA = "hum_workers.llama_rpc_worker"


async def test_help_says_what_there_is_and_what_the_exit_codes_mean(short_dir: Path) -> None:
    code, out, err = await worker(short_dir, "--help")
    assert (code, err) == (0, "")
    flags = "--egg --prompt --check --show-command --egg-schema --version --system --max-tokens"
    for word in (*flags.split(), "--temperature", "--json", "exit codes:", "130 or 143"):
        assert word in out
    usage = out.split("\n\n")[0]
    modes = "--prompt --check --show-command --egg-schema --version"
    for word in (*modes.split(), "vllm-worker status [--watch] [--json]"):
        assert word in usage


async def test_version_names_worker_protocol_and_engine(short_dir: Path) -> None:
    code, out, _ = await worker(short_dir, "--version")
    assert code == 0
    assert out.startswith(f"vllm-worker {__version__}, thrum 0.7.0, vLLM ")
    assert out.count("\n") == 1


async def test_the_schema_of_an_egg_is_json(short_dir: Path) -> None:
    code, out, _ = await worker(short_dir, "--egg-schema")
    assert code == 0
    assert {"bee", "model", "engine", "limits"} <= set(json.loads(out)["properties"])


WRONG = {
    "an unknown flag": (["--eg", "x"], "unrecognized arguments: --eg x"),
    "a stray": (["--egg", "x", "--json"], "--json goes with --prompt only"),
    "a stray quiet": (["--egg", "x", "--quiet"], "--quiet goes with --prompt only"),
    "a stray with a value": (["--system", "be brief"], "--system goes with --prompt only"),
    "a stray number": (["--max-tokens", "5"], "--max-tokens goes with --prompt only"),
    "a stray zero": (["--temperature", "0"], "--temperature goes with --prompt only"),
    "two modes": (["--check", "--prompt", "x"], "not allowed with argument"),
    "no tokens": (["--prompt", "x", "--max-tokens", "0"], "'0' is no whole number above 0"),
    "too hot": (["--prompt", "x", "--temperature", "3"], "'3' is no number from 0 to 2"),
    "not a number": (["--prompt", "x", "--temperature", "nan"], "'nan' is no number from 0 to 2"),
    "a word too many": (["serve"], "unrecognized arguments: serve"),
    "a slip in a word": (["statuss"], "statuss; did you mean vllm-worker status?"),
    "a slip in a flag": (["--promt=hi"], "--promt=hi; did you mean --prompt?"),
    "status behind a flag": (["--egg", "x", "status"], "did you mean vllm-worker status?"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_command_line_leaves_with_2_and_says_what(case: str, short_dir: Path) -> None:
    args, message = WRONG[case]
    code, out, err = await worker(short_dir, *args)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]


async def test_without_an_egg_it_says_how_to_name_one(short_dir: Path) -> None:
    code, _, err = await worker(short_dir, "--check")
    assert code == 2
    assert err.count("\n") == 1
    assert "--egg FILE" in err


@pytest.mark.parametrize("mode", [["--check"], ["--prompt", "hi"], ["--show-command"], []])
async def test_a_mistake_in_an_egg_leaves_with_2_and_its_place(
    mode: list[str], short_dir: Path
) -> None:
    path = egg(short_dir, extra="[limits]\nmax_waitng = 3")
    code, out, err = await worker(short_dir, "--egg", path, *mode)
    assert (code, out) == (2, "")
    assert str(path) in err
    assert "max_waiting" in err
    assert "Traceback" not in err
    assert_nothing_left(short_dir)


async def test_an_egg_that_is_not_there_is_named(short_dir: Path) -> None:
    code, _, err = await worker(short_dir, "--egg", short_dir / "nothing.toml")
    assert code == 2
    assert f"{short_dir}/nothing.toml" in err
    assert err.count("\n") == 1


async def test_check_of_an_egg_that_would_do_leaves_with_0(short_dir: Path) -> None:
    safetensors(model_folder(short_dir / "model") / "model.safetensors", {"w": 64})
    path = short_dir / "small.toml"
    path.write_text(f'[model]\npath = "./model"\n[kv]\nsize = "64MiB"\n{for_cpus(short_dir)}')
    code, out, err = await worker(short_dir, "--egg", path, "--check")
    assert (code, err) == (0, ""), out
    assert "error" not in out
    assert_nothing_left(short_dir)


async def test_check_leaves_with_3_when_only_the_engine_is_missing(short_dir: Path) -> None:
    path = without_vllm(short_dir)
    safetensors(model_folder(short_dir / "model") / "model.safetensors", {"w": 64})
    code, out, _ = await worker(short_dir, "--egg", path, "--check")
    assert code == 3, out
    assert "vLLM" in out


async def test_check_leaves_with_2_when_the_egg_can_not_be_meant_so(short_dir: Path) -> None:
    path = egg(short_dir)
    path.write_text(path.read_text().replace('path = "./model"', 'path = "./nowhere"'))
    code, out, err = await worker(short_dir, "--egg", path, "--check")
    assert code == 2, out
    assert "nowhere" in out + err


async def test_show_command_hides_what_is_secret(short_dir: Path) -> None:
    path = egg(short_dir)
    text = path.read_text().replace(
        "env = { ", 'args = ["--hf-token", "tops3cret-flag"]\nenv = { HF_TOKEN = "hf_tops3cret", '
    )
    path.write_text(text)
    code, out, _ = await worker(short_dir, "--egg", path, "--show-command")
    assert code == 0
    assert "--served-model-name echo" in out
    assert "HF_TOKEN=" in out
    assert "tops3cret" not in out
    assert "Bearer" not in out
    assert_nothing_left(short_dir)


async def test_show_command_shows_each_of_several_eggs(short_dir: Path) -> None:
    egg(short_dir, name="one")
    egg(short_dir, name="two")
    code, out, _ = await worker(short_dir, "--egg", short_dir, "--show-command")
    assert code == 0
    assert "--served-model-name one" in out
    assert "--served-model-name two" in out


def without_vllm(folder: Path) -> Path:
    """Returns an egg whose interpreter has no vLLM: ours, without its packages."""
    path = egg(folder)
    python = folder / "python"
    python.write_text('#!/bin/sh\nexec /usr/bin/env python3 -I -S "$@"\n')
    python.chmod(0o755)
    lines = path.read_text().splitlines()
    lines = [f'python = "{python}"' if line.startswith("python =") else line for line in lines]
    path.write_text("\n".join(lines))
    return path


async def test_a_model_that_is_cut_off_is_the_same_code_in_every_mode(short_dir: Path) -> None:
    (short_dir / "m.gguf").write_bytes(gguf()[:100])
    install(short_dir / "bin")
    path = short_dir / "cut.toml"
    path.write_text(
        '[cell]\nrole = "coordinator"\n[engine]\nbin = "bin"\n[model]\npath = "m.gguf"\n'
    )
    for mode in (["--check"], ["--show-command"], ["--prompt", "hello"]):
        code, out, err = await worker(short_dir, "--egg", path, *mode, program=LLAMA)
        assert (code, "fetch it again" in out + err) == (3, True), (mode, out, err)


async def test_a_model_that_is_not_there_is_the_same_code_in_every_mode(short_dir: Path) -> None:
    path = short_dir / "none.toml"
    path.write_text('[cell]\nrole = "coordinator"\n[model]\npath = "m.gguf"\n')
    for mode in (["--check"], ["--show-command"], ["--prompt", "hello"]):
        code, _, err = await worker(short_dir, "--egg", path, *mode, program=LLAMA)
        assert (code, "does not exist" in err) == (2, True), (mode, err)
