"""`--check` of a llama.cpp bee: nothing loaded, everything told, never an exception."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from hum_workers.egg import load_eggs
from hum_workers.llama_rpc_worker.check import check
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from hum_workers.program.findings import Finding
from hum_workers.thrum.identity import Identity
from tests.llama_rpc_worker.gguf_files import BLOCKS, WIDTH, gguf, written
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


def declared(*layers: str) -> str:
    return "".join(
        f'[[slices]]\nendpoint = "10.0.0.{n}:7300"\nlayers = "{one}"\n'
        for n, one in enumerate(layers, 1)
    )


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


def test_the_hid_that_others_need_is_told_before_the_first_start(short_dir: Path) -> None:
    def identity() -> str:
        (found,) = [one for one in look(short_dir, slice_(short_dir)) if one.subject == "identity"]
        return found.message

    made = identity()
    assert made.startswith("wbee_")
    assert identity().split()[0] == made.split()[0]


def test_a_bee_that_runs_already_is_told_with_what_a_start_would_do(short_dir: Path) -> None:
    found = look(short_dir, slice_(short_dir))
    running = Identity.load("llama-rpc-worker", None, short_dir / "state")
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f'listen = "127.0.0.1:{server.getsockname()[1]}"\n'
        found = look(short_dir, slice_(short_dir, listen))
        running.close()
        after = look(short_dir, slice_(short_dir, listen))
    (identity,) = [one for one in found if one.subject == "identity"]
    assert (identity.level, "exit code 2" in identity.message) == ("warning", True)
    assert [one.level for one in found if one.subject == "door"] == ["warning"]
    (door,) = [one for one in after if one.subject == "door"]
    assert (door.level, door.message.startswith("[rpc] listen: port")) == ("error", True)


def test_a_door_and_what_is_lent_are_told(short_dir: Path) -> None:
    found = look(short_dir, slice_(short_dir))
    (door,) = [one for one in found if one.subject == "door"]
    assert (door.level, door.message) == (
        "ok",
        "[rpc] listen: any port of 127.0.0.1 that is free",
    )
    (memory,) = about(found, "memory")
    assert (memory.level, "free on CPU" in memory.message) == ("ok", True)
    elsewhere = look(short_dir, slice_(short_dir, 'listen = "192.0.2.1:7300"\n'))
    (door,) = [one for one in elsewhere if one.subject == "door"]
    assert (door.level, "no address of this machine" in door.message) == ("error", True)


def test_what_is_lent_is_held_against_the_devices_that_lend_it(short_dir: Path) -> None:
    gpu = "  CUDA0: NVIDIA X (80000 MiB, 70000 MiB free)\\n"
    for said, level in (("75000MiB", "warning"), ("90000MiB", "error"), ("60000MiB", "ok")):
        text = slice_(short_dir, f'memory = "{said}"\n', devices=gpu)
        (memory,) = about(look(short_dir, text), "memory")
        assert (memory.level, "CUDA0" in memory.message) == (level, True)


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
    assert (devices.level, "there is CUDA0, CPU" in devices.message) == ("error", True)


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'[split]\nlocal = "0:{BLOCKS + 1}"\n', "which the model has not"),
        ('[split]\nlocal = "1:2"\n', "begin at 0"),
        (declared(f"0:{BLOCKS + 1}"), "go beyond the model"),
        (declared("0:1"), f"no slice holds layers 1:{BLOCKS}"),
        (declared(f"1:{BLOCKS}") + '[split]\nlocal = "0:1"\npolicy = "declared"\n', ""),
        (declared("0:1") + "[[slices]]\ndiscover = true\n", ""),
    ],
)
def test_layers_that_the_model_has_not_or_nobody_holds(
    text: str, words: str, short_dir: Path
) -> None:
    if "policy" not in text and "slices" in text:
        text += '[split]\npolicy = "declared"\n'
    errors = about(look(short_dir, coordinator(short_dir, text)), "model")
    messages = [one.message for one in errors if one.level == "error"]
    assert [words in message for message in messages] == ([True] if words else [])


def test_a_context_that_is_rounded_up_is_told(short_dir: Path) -> None:
    text = coordinator(short_dir).replace("ctx = 256", "ctx = 100")
    (warning, _) = about(look(short_dir, text), "model")
    assert (warning.level, "uses 256 a turn" in warning.message) == ("warning", True)


@pytest.mark.parametrize(
    ("template", "level"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "ok"),
        ("{% for m in messages %}{{ m.content }}", "error"),
        ("{{ m.content", "error"),
        ("{% generation %}x{% endgeneration %}", "warning"),
    ],
)
def test_a_chat_template_that_no_engine_can_read_is_an_error(
    template: str, level: str, short_dir: Path
) -> None:
    (short_dir / "chat.jinja").write_text(template)
    for given in (template, "chat.jinja"):
        text = coordinator(short_dir, f"chat_template = {json.dumps(given)}\n")
        found = about(look(short_dir, text), "model")
        assert [one.level for one in found if "chat_template" in one.message] == [level]


def test_flags_are_held_to_the_help_of_the_llama_server_that_is_there(short_dir: Path) -> None:
    text = coordinator(short_dir).replace("[model]", 'args = ["-ctk", "q99"]\n[model]')
    found = about(look(short_dir, text), "engine")
    assert [one.level for one in found] == ["ok", "warning"]  # that help has no flags
    help_ = (Path(__file__).parent / "server_lines" / "help.txt").read_text()
    (short_dir / "help.txt").write_text(help_)
    server = short_dir / "bin" / "llama-server"
    server.write_text(server.read_text().replace('echo "--rpc S"', f"cat {short_dir}/help.txt"))
    (_, error) = about(look(short_dir, text), "engine")
    assert (error.level, "-ctk is set to nothing" in error.message) == ("error", True)
    assert "q99" not in error.message
