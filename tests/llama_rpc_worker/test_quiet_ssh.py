"""The SSH library's import starts no other program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLED = ("gcc", "cc", "ld", "ldconfig", "objdump")
START = """
from hum_workers.llama_rpc_worker.__main__ import WORKER, _need_ssh
_need_ssh()
import hum_workers.llama_rpc_worker.annex, hum_workers.llama_rpc_worker.door
import ctypes.util
assert ctypes.util.find_library.__module__ == "ctypes.util"
"""
BARE = "import asyncssh"


def called(folder: Path, script: str) -> set[str]:
    """Which of the programs that `find_library` tries are run by a script."""
    programs = folder / "bin"
    programs.mkdir()
    for name in CALLED:
        path = programs / name
        path.write_text(f'#!/bin/sh\n: > "{folder}/$(basename "$0").called"\nexit 1\n')
        path.chmod(0o755)
    env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=60)
    return {path.stem for path in folder.glob("*.called")}


@pytest.mark.parametrize(("script", "runs"), [(START, False), (BARE, True)])
def test_the_workers_import_calls_no_compiler_and_a_bare_one_does(
    tmp_path: Path, script: str, runs: bool
) -> None:
    assert ("gcc" in called(tmp_path, script)) is runs
