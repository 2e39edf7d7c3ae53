"""Commissioning of llama-rpc-worker: what differs from the other hive, and one build to the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hum_workers.egg import load_eggs
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from scripts import commission, commission_llama, llama_cpp
from scripts.environment import SetupError
from tests.rig import ROOT

HIVES = ROOT / "hives"
HIVE = HIVES / "llama-rpc-worker"
pytestmark = [pytest.mark.xdist_group("hives"), pytest.mark.timeout(180)]
SERVER = """#!/bin/sh
case $1 in
--version) echo 'version: 11434 (1a2b3c4d)';;
--help) echo '--rpc SERVERS';;
esac
"""


def programs(folder: Path, *names: str) -> Path:
    """Makes a llama.cpp that answers questions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or llama_cpp.NEEDED:
        (folder / name).write_text(SERVER)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hive-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def environment(home: Path, *path: Path) -> dict[str, str]:
    """Returns what the user's shell gives a build, with further folders on PATH."""
    cache = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
    )
    foreign = ("HUM_", "XDG_", "PYTHON", "VIRTUAL_ENV")
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(foreign)},
        "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]]),
        "HOME": str(home),
        "PIP_CACHE_DIR": cache.stdout.strip(),
        "PYTHON": sys.executable,
    }


def test_both_hives_have_the_same_build() -> None:
    assert (HIVE / "build").read_bytes() == (HIVES / "vllm-worker" / "build").read_bytes()
    assert os.access(HIVE / "build", os.X_OK)


def test_the_orchfile_starts_this_hives_launcher() -> None:
    other = (HIVES / "vllm-worker" / "Orchfile").read_text()
    assert (HIVE / "Orchfile").read_text() == other.replace("vllm-worker", "llama-rpc-worker")


def test_the_example_egg_has_no_mistake() -> None:
    (egg,) = load_eggs([HIVE / "example.toml"], LlamaEgg)
    assert egg.cell.role == "slice"
    assert not egg.warnings


def test_a_build_takes_the_llama_cpp_on_path_and_its_worker_runs(home: Path) -> None:
    env = environment(home, programs(home / "llama"))
    done = subprocess.run(
        ["bash", "build"], cwd=HIVE, env=env, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    assert f"{home / 'llama' / 'llama-server'} is on PATH and has RPC" in done.stdout
    launcher = home / ".local" / "bin" / "llama-rpc-worker"
    egg = home / ".config" / "hum" / "llama-rpc-worker.toml"
    assert egg.read_bytes() == (HIVE / "example.toml").read_bytes()
    service = {**env, "XDG_RUNTIME_DIR": str(home)}
    ran = subprocess.run([launcher, "--version"], env=service, capture_output=True, text=True)
    assert "llama.cpp 11434 (1a2b3c4d)" in ran.stdout
    python = home / ".local/share/hum/hum_workers/llama-rpc-worker/venv/bin/python"
    subprocess.run([python, "-c", "import asyncssh"], check=True)
    checked = subprocess.run([launcher, "--check"], env=service, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"in {home / 'llama'}" in checked.stdout


def test_a_llama_cpp_without_rpc_on_path_is_not_taken(tmp_path: Path) -> None:
    folder = programs(tmp_path / "plain", "llama-server")
    assert commission_llama.found({"PATH": str(folder)}) is None
    assert commission_llama.found({"PATH": str(tmp_path)}) is None


def test_gpus_without_cudas_compiler_are_told(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nvcc.*HUM_WORKERS_EXTRA=cpu"):
        commission_llama.bring(tmp_path, tmp_path, cuda=True, env={"PATH": str(tmp_path)})


def test_what_was_built_is_linked_beside_the_interpreter(tmp_path: Path) -> None:
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    home = tmp_path / "llama.cpp"
    place = home / llama_cpp.key()
    programs(place / "bin")
    llama_cpp.stamp(place, "11434")
    for _ in range(2):
        commission_llama.bring(tmp_path, venv.parent, cuda=False, env={"PATH": "/nowhere"})
    for name in llama_cpp.NEEDED:
        assert (venv / name).resolve() == place / "bin" / name


def test_the_engine_follows_the_devices(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "HUM_WORKERS_EXTRA": "none"}
    assert commission.extras("llama-rpc-worker", env, ROOT) == ()
    assert commission.extras("llama-rpc-worker", env | {"HUM_WORKERS_EXTRA": "cpu"}, ROOT) == (
        "cpu",
    )
