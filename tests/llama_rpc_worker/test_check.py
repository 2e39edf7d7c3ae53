"""`--check` of a llama.cpp bee: nothing loaded, everything told, never an exception."""

from __future__ import annotations

import os
from pathlib import Path

from hum_workers.egg import load_eggs
from hum_workers.llama_rpc_worker.check import check
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from hum_workers.program.findings import Finding
from tests.llama_rpc_worker.gguf_files import WIDTH, gguf, written
from tests.llama_rpc_worker.test_binaries import install


def look(folder: Path, text: str) -> list[Finding]:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "small.toml").write_text(text)
    eggs = load_eggs([folder / "small.toml"], LlamaEgg)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "HUM_THRUM_SOCK": str(folder / "thrum.sock"),
    }
    return check(eggs, env)


def coordinator(folder: Path, text: str = "", *, devices: str = "", rpc: bool = True) -> str:
    install(folder / "bin", devices=devices, rpc=rpc, help_="--rpc S" if rpc else "none")
    if not (folder / "m.gguf").exists():
        written(folder / "m.gguf", gguf())
    return (
        '[cell]\nrole = "coordinator"\n[engine]\nbin = "bin"\n[model]\npath = "m.gguf"\n'
        f"ctx = 256\n{text}"
    )


def slice_(folder: Path, text: str = "", *, devices: str = "", rpc: bool = True) -> str:
    install(folder / "bin", devices=devices, rpc=rpc)
    return f'[cell]\nrole = "slice"\n[engine]\nbin = "bin"\n[rpc]\n{text}'


def about(findings: list[Finding], what: str) -> list[Finding]:
    return [finding for finding in findings if finding.subject == f"small {what}"]


def test_every_part_of_a_coordinator_is_looked_at(short_dir: Path) -> None:
    found = look(short_dir, coordinator(short_dir))
    assert {"small model", "small engine", "small devices", "small memory", "socket"} <= {
        finding.subject for finding in found
    }
    assert [finding for finding in found if finding.level == "error"] == []
    (model,) = about(found, "model")
    assert f"hidden width {WIDTH}" in model.message
    assert "llama.cpp 11434" in about(found, "engine")[0].message
    assert not (short_dir / "state").exists()


def test_another_model_than_the_egg_says_is_an_error(short_dir: Path) -> None:
    text = coordinator(short_dir, 'hidden_width = 4096\nfingerprint = "0123456789abcdef"\n')
    found = about(look(short_dir, text), "model")
    assert [finding.level for finding in found] == ["error", "error"]
    assert "hidden_width is 4096" in found[0].message
    assert "fingerprint is 0123456789abcdef" in found[1].message


def test_a_damaged_model_is_an_error_of_one_line(short_dir: Path) -> None:
    text = coordinator(short_dir)
    written(short_dir / "m.gguf", gguf()[:100])
    (found,) = about(look(short_dir, text), "model")
    assert found.level == "error"
    assert "m.gguf" in found.message


def test_more_context_than_the_model_was_trained_for_is_a_warning(short_dir: Path) -> None:
    text = coordinator(short_dir).replace("ctx = 256", "ctx = 4096")
    levels = [finding.level for finding in about(look(short_dir, text), "model")]
    assert levels == ["warning", "ok"]


def test_a_slice_has_no_model_and_needs_rpc_server(short_dir: Path) -> None:
    found = look(short_dir, slice_(short_dir))
    assert about(found, "model") == []
    assert about(found, "devices")[0].message == "CPU"
    (short_dir / "bin" / "ggml-rpc-server").unlink()
    (engine,) = about(look(short_dir, slice_(short_dir, rpc=False)), "engine")
    assert engine.level == "error"
    assert "built without RPC" in engine.message


def test_a_device_that_is_not_there_is_told_with_those_that_are(short_dir: Path) -> None:
    text = slice_(
        short_dir, 'devices = ["CUDA1"]\n', devices="  CUDA0: NVIDIA X (80000 MiB, 7 MiB free)\\n"
    )
    (devices,) = about(look(short_dir, text), "devices")
    assert (devices.level, "CUDA0, CPU are" in devices.message) == ("error", True)


def test_more_than_the_machine_has_can_not_be_lent(short_dir: Path) -> None:
    (memory,) = about(look(short_dir, slice_(short_dir, 'memory = "900TiB"\n')), "memory")
    assert memory.level == "error"


def test_a_model_that_does_not_fit_says_what_to_lower(short_dir: Path) -> None:
    text = coordinator(short_dir).replace("ctx = 256", "ctx = 256\nparallel = 900000000")
    (memory,) = about(look(short_dir, text), "memory")
    assert (memory.level, "lower [model] ctx" in memory.message) == ("error", True)
    small = coordinator(short_dir, '[limits]\nmemory = "1MiB"\n')
    (memory,) = about(look(short_dir, small), "memory")
    assert (memory.level, "[limits] memory" in memory.message) == ("warning", True)


def test_a_coordinator_of_slices_needs_a_server_with_rpc(short_dir: Path) -> None:
    text = coordinator(short_dir, "[[slices]]\ndiscover = true\n", rpc=False)
    (engine,) = about(look(short_dir, text), "engine")
    assert (engine.level, "can use no slices" in engine.message) == ("error", True)
