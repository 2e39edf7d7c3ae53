"""What the raiser looks up: programs, a free port, the model's header, the cache of a slice."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hum_workers.egg import load_eggs
from hum_workers.errors import EngineError
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from hum_workers.llama_rpc_worker.raiser import LlamaRaiser, cache_folder, free_port, prune
from tests.llama_rpc_worker.gguf_files import gguf, written
from tests.llama_rpc_worker.test_binaries import install


def raiser(folder: Path, text: str, *, devices: str = "", rpc: bool = True) -> LlamaRaiser:
    install(folder / "bin", devices=devices, rpc=rpc, help_="--rpc S" if rpc else "none")
    written(folder / "m.gguf", gguf())
    (folder / "small.toml").write_text(f'[engine]\nbin = "bin"\n{text}')
    (egg,) = load_eggs([folder / "small.toml"], LlamaEgg)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return LlamaRaiser(egg, private=Path("/run/h/small"), log_file=None, inherited=env)


COORDINATOR = '[cell]\nrole = "coordinator"\n[model]\npath = "m.gguf"\n'
SLICE = '[cell]\nrole = "slice"\n[rpc]\n'


def test_each_cell_has_a_folder_and_a_key_of_its_own(tmp_path: Path) -> None:
    made = raiser(tmp_path, COORDINATOR)
    one, other = made.spec("small-1"), made.spec("small-2")
    assert one.private != other.private
    assert one.headers != other.headers
    assert made.binaries().build.commit == "11434-1a2b3c4d"


def test_the_route_that_was_set_is_the_one_that_is_raised(tmp_path: Path) -> None:
    made = raiser(tmp_path, COORDINATOR)
    made.route_flags = ["--rpc", "127.0.0.1:9", "--device", "RPC0"]
    assert "127.0.0.1:9" in made.spec("small-1").argv
    made = raiser(tmp_path, COORDINATOR, rpc=False)
    made.route_flags = ["--rpc", "127.0.0.1:9"]
    with pytest.raises(EngineError, match="can use no slices"):
        made.spec("small-1")


def test_another_model_than_the_egg_says_is_not_raised(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="hidden_width is 999"):
        raiser(tmp_path, f"{COORDINATOR}hidden_width = 999\n").spec("small-1")


def test_batches_are_short_where_a_cpu_reads_prompts(tmp_path: Path) -> None:
    argv = raiser(tmp_path, COORDINATOR).spec("small-1").argv
    assert argv[argv.index("-b") + 1] == "128"
    gpu = "  CUDA0: NVIDIA X (80000 MiB, 7 MiB free)\\n"
    argv = raiser(tmp_path, COORDINATOR, devices=gpu).spec("small-1").argv
    assert argv[argv.index("-b") + 1] == "512"


def test_a_slice_listens_on_a_free_port_of_loopback(tmp_path: Path) -> None:
    spec = raiser(tmp_path, f'{SLICE}listen = "0.0.0.0:7300"\n').spec("small-1")
    host, _, port = spec.uds.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) != 7300
    with socket.socket() as listener:
        listener.bind((host, int(port)))


def test_a_slice_of_a_private_network_listens_there(tmp_path: Path) -> None:
    text = f'{SLICE}listen = "127.0.0.2:7300"\nprivate_network = true\n'
    assert raiser(tmp_path, text).spec("small-1").uds.startswith("127.0.0.2:")


def test_a_port_is_another_one_while_the_first_is_in_use() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        assert free_port("127.0.0.1") != listener.getsockname()[1]


def test_tensors_are_kept_in_a_folder_of_ours_and_the_oldest_go(tmp_path: Path) -> None:
    spec = raiser(tmp_path, f"{SLICE}cache = true\n").spec("small-1")
    folder = cache_folder({"HOME": str(tmp_path)})
    assert spec.env["LLAMA_CACHE"] == str(folder) == f"{tmp_path}/.cache/hum/llama.cpp"
    assert folder.stat().st_mode & 0o777 == 0o700
    for age, name in ((300, "old"), (200, "middle"), (100, "new")):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (10_000 - age, 10_000 - age))
    prune(folder, 200)
    assert sorted(path.name for path in folder.iterdir()) == ["middle", "new"]


def test_the_names_of_slices_stand_in_the_reason(tmp_path: Path) -> None:
    made = raiser(tmp_path, COORDINATOR)
    made.explain = lambda line: line.replace("127.0.0.1:9", "slice attic")
    found = made.diagnose(["/build/ggml-rpc.cpp:547: Failed to connect to 127.0.0.1:9"])
    assert found.line == "a slice failed: Failed to connect to slice attic"
