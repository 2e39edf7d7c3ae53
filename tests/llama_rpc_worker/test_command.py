"""The command lines of llama-server and rpc-server, from the egg alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hum_workers.errors import EngineError
from hum_workers.llama_rpc_worker.command import LOCAL_ROUTE, build_coordinator, build_slice
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from hum_workers.program.shell_words import describe
from hum_workers.spec import CellSpec
from tests.llama_rpc_worker.nursery import binaries, coordinator, lent

ROUTE = ["--rpc", "127.0.0.1:9001,127.0.0.1:9002", "--device", "RPC0,RPC1", "-ts", "15,16"]
SHELL = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "LLAMA_ARG_RPC": "10.0.0.1:1",
    "LLAMA_SERVER_ROUTER_PORT": "1",
    "LLAMA_API_KEY": "shell",
    "HF_TOKEN": "hush",
    "LC_ALL": "C",
    "CUDA_VISIBLE_DEVICES": "1",
}


def server(egg: LlamaEgg, route: list[str] | None = None, **changes: Any) -> CellSpec:
    told: dict[str, Any] = {
        "cell_id": "small-1",
        "private": Path("/run/h/small"),
        "log_file": Path("/var/log/small.log"),
        "inherited": SHELL,
        "cores": [0, 1, 2],
    }
    return build_coordinator(egg, binaries(), route or list(LOCAL_ROUTE), **(told | changes))


def slice_(egg: LlamaEgg, **changes: Any) -> CellSpec:
    told: dict[str, Any] = {
        "cell_id": "slice-1",
        "private": Path("/run/h/slice"),
        "cache": Path("/cache/llama"),
        "log_file": None,
        "inherited": SHELL,
        "cores": [0, 1, 2],
    }
    found = binaries(**{key: changes.pop(key) for key in ("slice", "devices") if key in changes})
    return build_slice(egg, found, 7301, **(told | changes))


def value(spec: CellSpec, flag: str) -> str:
    return spec.argv[spec.argv.index(flag) + 1]


def test_the_context_of_all_turns_is_asked_for_and_none_is_shared(tmp_path: Path) -> None:
    spec = server(coordinator(tmp_path, "ctx = 2048\nparallel = 3"))
    assert (value(spec, "-c"), value(spec, "-np")) == ("6144", "3")
    assert "-no-kvu" in spec.argv
    assert value(spec, "-fit") == "off"


def test_the_route_stands_where_it_was_given_and_the_eggs_own_flags_come_last(
    tmp_path: Path,
) -> None:
    spec = server(coordinator(tmp_path, '[engine]\nargs = ["-ctk", "q8_0"]'), ROUTE)
    at = spec.argv.index("--rpc")
    assert spec.argv[at : at + len(ROUTE)] == ROUTE
    assert spec.argv[-2:] == ["-ctk", "q8_0"]


def test_the_key_is_in_a_file_alone_and_new_each_time(tmp_path: Path) -> None:
    egg = coordinator(tmp_path)
    one, other = server(egg), server(egg)
    key = one.files["key"].strip()
    assert key != other.files["key"].strip()
    assert one.headers == {"Authorization": f"Bearer {key}"}
    assert key not in " ".join([*one.argv, *one.env.values()])
    assert key not in describe(one)
    assert value(one, "--api-key-file") == "/run/h/small/key"


def test_it_listens_on_a_socket_of_its_own_folder(tmp_path: Path) -> None:
    spec = server(coordinator(tmp_path))
    assert value(spec, "--host") == spec.uds == "/run/h/small/engine.sock"
    assert "--port" not in spec.argv


def test_a_path_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="XDG_RUNTIME_DIR"):
        server(coordinator(tmp_path), private=Path("/" + "x" * 100))


def test_nothing_of_the_shell_moves_a_layer(tmp_path: Path) -> None:
    env = server(coordinator(tmp_path)).env
    assert not [name for name in env if name.startswith(("LLAMA_ARG", "LLAMA_SERVER", "HF_"))]
    assert "LLAMA_API_KEY" not in env
    assert env["HOME"] == "/run/h/small"
    assert env["LC_ALL"] == "C"
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["GGML_NO_BACKTRACE"] == "1"


def test_what_the_egg_sets_wins(tmp_path: Path) -> None:
    env = server(coordinator(tmp_path, "[engine.env]\nOMP_NUM_THREADS = '4'")).env
    assert env["OMP_NUM_THREADS"] == "4"


def test_nothing_that_reaches_beyond_the_engine_is_on(tmp_path: Path) -> None:
    argv = server(coordinator(tmp_path)).argv
    for flag in ("--no-ui", "--no-slots", "--check-tensors", "--metrics", "--jinja"):
        assert flag in argv
    assert argv[argv.index("--cors-origins") + 1] == "localhost"
    assert argv[argv.index("--cache-ram") + 1] == "0"
    assert argv[argv.index("-lv") + 1] == "4"


def test_a_template_is_given_as_a_file(tmp_path: Path) -> None:
    spec = server(coordinator(tmp_path, "chat_template = '{{ messages }}'"))
    assert value(spec, "--chat-template-file") == "/run/h/small/chat.jinja"
    assert spec.files["chat.jinja"] == "{{ messages }}"
    (tmp_path / "own.jinja").touch()
    spec = server(coordinator(tmp_path, "chat_template = 'own.jinja'"))
    assert value(spec, "--chat-template-file") == str(tmp_path / "own.jinja")


def test_threads_are_those_of_the_cell_unless_the_egg_says(tmp_path: Path) -> None:
    assert value(server(coordinator(tmp_path)), "-t") == "3"
    spec = server(coordinator(tmp_path, '[engine]\nargs = ["--threads", "1"]'))
    assert "-t" not in spec.argv


def test_a_batch_is_as_long_as_a_cancel_may_take(tmp_path: Path) -> None:
    spec = server(coordinator(tmp_path), batch=128)
    assert (value(spec, "-b"), value(spec, "-ub")) == ("128", "128")


def test_a_slice_listens_on_loopback_and_says_all_it_can(tmp_path: Path) -> None:
    spec = slice_(lent(tmp_path))
    assert spec.argv == [
        *("/opt/llama/ggml-rpc-server", "-H", "127.0.0.1", "-p", "7301", "-t", "3", "-d", "CPU")
    ]
    assert (spec.protocol, spec.uds, spec.model) == ("rpc", "127.0.0.1:7301", "")
    assert not spec.canaries
    assert spec.env["LLAMA_CACHE"] == "/cache/llama"


def test_a_slice_lends_its_gpus_or_what_the_egg_says(tmp_path: Path) -> None:
    assert value(slice_(lent(tmp_path), devices=("CUDA0", "CUDA1")), "-d") == "CUDA0,CUDA1"
    egg = lent(tmp_path, 'devices = ["CPU"]\nthreads = 1\ncache = true')
    spec = slice_(egg, devices=("CUDA0",))
    assert (value(spec, "-d"), value(spec, "-t"), spec.argv[-1]) == ("CPU", "1", "-c")


def test_without_rpc_no_slice_can_be_raised(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="built without RPC"):
        slice_(lent(tmp_path), slice=None)


def test_a_wrapper_stands_in_front(tmp_path: Path) -> None:
    spec = server(coordinator(tmp_path, '[engine]\ncommand = ["nice", "-n", "5"]'))
    assert spec.argv[:4] == ["nice", "-n", "5", "/opt/llama/llama-server"]
    assert CellSpec.from_wire(spec.to_wire()) == spec
