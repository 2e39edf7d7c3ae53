"""The parts of `make setup` that decide; making the environment itself is what CI does first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import environment, smollm2, tiny
from scripts.pip_run import advice, condense
from tests.rig import ROOT

PROJECT = """[build-system]
requires = ["hatchling"]
[project]
dependencies = ["a>=1"]
description = "%s"
optional-dependencies = { cpu = ["b"], dev = [] }
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "  Downloading triton-3.9.0-cp311-cp311-x86_64.whl (285.8 MB)",
            "triton 3.9.0, downloading (285.8 MB)",
        ),
        (
            "  Using cached ijson-3.6.0-cp311-cp311-x86_64.whl (135 kB)",
            "ijson 3.6.0, from the cache (135 kB)",
        ),
        (
            "Processing /w/jinja2-3.1.6-py3-none-any.whl (from torch->x)",
            "jinja2 3.1.6, from a local folder",
        ),
        ("  Downloading triton-3.9.0-cp311-cp311-x86_64.whl.metadata (2 kB)", None),
        ("Requirement already satisfied: idna in ./x", None),
        ("  Preparing metadata (pyproject.toml): finished with status 'done'", None),
    ],
)
def test_pips_lines_are_condensed(line: str, said: str | None) -> None:
    assert condense(line) == said


def test_a_missing_cpu_torch_says_what_to_do() -> None:
    said = advice(["Could not find a version that satisfies the requirement torch==2.13.0+cpu"])
    assert "PIP_EXTRA_INDEX_URL" in said


def test_only_what_pip_resolves_changes_the_stamp(tmp_path: Path) -> None:
    def stamp(text: str) -> object:
        (tmp_path / "pyproject.toml").write_text(text)
        return environment.wanted(tmp_path, ("cpu", "dev"))

    before = stamp(PROJECT % "one")
    assert stamp(PROJECT % "another") == before
    assert stamp((PROJECT % "one").replace("a>=1", "a>=2")) != before


@pytest.mark.parametrize(
    ("torch", "vision", "out"),
    [
        ("2.13.0+cpu", "0.29.1", ["torchvision"]),
        ("2.13.0+cpu", "0.28.0+cpu", []),
        ("2.13.0", "0.28.0", []),
    ],
)
def test_only_companions_of_another_torch_are_removed(
    tmp_path: Path, torch: str, vision: str, out: list[str]
) -> None:
    for name in (f"torch-{torch}", f"torchvision-{vision}", "torchmetrics-1.0"):
        (tmp_path / "lib/python3.11/site-packages" / f"{name}.dist-info").mkdir(parents=True)
    assert environment.unmatched(tmp_path) == out


def test_an_environment_that_was_left_half_way_is_not_used(tmp_path: Path) -> None:
    want = environment.wanted(ROOT, environment.EXTRAS)
    venv = Path(sys.prefix)
    if venv == ROOT / ".venv":
        assert environment.usable(venv, want)
    assert not environment.usable(tmp_path, want)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / environment.BUSY).touch()
    assert not environment.usable(tmp_path, want)


def test_an_interrupted_setup_ends_pip_and_is_no_finished_one(tmp_path: Path) -> None:
    """A stand-in for pip that never ends: the signal must reach it, and no stamp may be there."""
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    program = f"""
import signal, sys
from pathlib import Path
from scripts import environment
from scripts.pip_run import pip_install
from scripts.progress import Progress
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, environment.stop)
venv = Path({str(tmp_path)!r})
child = "import os, time; print('Collecting', os.getpid(), flush=True); time.sleep(600)"
try:
    with Progress() as progress, (venv / "log").open("w") as log:
        progress.now = lambda name: progress.say(name)
        pip_install([sys.executable, "-c", child], venv, progress, log)
except environment.Interrupted as signalled:
    sys.exit(signalled.code)
"""
    run = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    with run.stdout:
        child = int(run.stdout.readline().split()[-1])
        run.send_signal(signal.SIGTERM)
        run.send_signal(signal.SIGINT)
        assert run.wait(20) in (130, 143)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_model_is_complete_only_with_every_file_of_its_stamp(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert not smollm2.complete(tmp_path)
    smollm2.stamp(tmp_path)
    assert smollm2.complete(tmp_path, verify=True)
    (tmp_path / "config.json").write_text("[]")
    assert smollm2.complete(tmp_path)
    assert not smollm2.complete(tmp_path, verify=True)
    (tmp_path / "config.json").unlink()
    assert not smollm2.complete(tmp_path)
    (tmp_path / smollm2.STAMP).write_text('{"format": 1')
    assert not smollm2.complete(tmp_path)


def test_the_tiny_model_has_a_tokenizer_and_no_weights(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in tiny.TOKENIZER:
        (source / name).write_text("{}")
    tiny.make(tmp_path / "tiny", source)
    assert sorted(p.name for p in (tmp_path / "tiny").iterdir()) == sorted(
        ["config.json", *tiny.TOKENIZER]
    )
    assert json.loads((tmp_path / "tiny" / "config.json").read_text())["num_hidden_layers"] == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "tiny"]
