"""The Makefile, with an interpreter that only writes down what it is asked to run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.rig import ROOT

STUB = """#!/bin/sh
echo "$*" >> ran
case "$*" in *"$FAIL"*) exit 1;; esac
"""
ALL = [
    "pytest -n 2",
    "pytest -m real",
    "pytest -m llama",
    "ruff check",
    "ruff format --check",
    "mypy",
]


def made(folder: Path, target: str, fail: str) -> tuple[int, list[str]]:
    """Returns make's exit code and what was run; what holds `fail` fails."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB)
    python.chmod(0o755)
    (folder / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    command = ["make", "-C", str(folder), f"PYTHON={python}", target]
    code = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "FAIL": fail}, capture_output=True, timeout=30
    ).returncode
    return code, (folder / "ran").read_text().splitlines()


@pytest.mark.parametrize("fail", ["ruff check", "-m not real", "mypy", "no such thing"])
def test_what_fails_in_make_test_hides_nothing_of_the_rest(fail: str, tmp_path: Path) -> None:
    code, ran = made(tmp_path, "test", fail)
    assert (code == 0) is (fail == "no such thing")
    run = [line.removeprefix("-m ") for line in ran]
    for step in ALL:
        assert any(line.startswith(step) for line in run), f"{step} was not run: {run}"
