"""llama.cpp's programs, stood in for by shell scripts: found, asked, and told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from hum_workers.errors import EngineError
from hum_workers.llama_rpc_worker import binaries
from hum_workers.llama_rpc_worker.binaries import find

VERSION = "version: 11434 (1a2b3c4d)\nbuilt with GNU 12.2.0 for Linux x86_64"
HELP = "--rpc SERVERS   comma-separated list of RPC servers"
ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(autouse=True)
def _nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "BUILT", tmp_path / "nothing")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def install(
    folder: Path, *, version: str = VERSION, help_: str = HELP, devices: str = "", rpc: bool = True
) -> Path:
    text = (
        f'case $1 in\n--version) echo "{version}" >&2;;\n--help) echo "{help_}";;\n'
        f'*) printf "Available devices:\\n{devices}";;\nesac'
    )
    program(folder / "llama-server", text)
    if rpc:
        program(folder / "ggml-rpc-server", "exit 0")
    return folder


def test_a_build_is_its_number_and_commit(tmp_path: Path) -> None:
    found = find(install(tmp_path / "bin"), ENV)
    assert found.build.commit == "11434-1a2b3c4d"
    assert found.version == "11434 (1a2b3c4d)"
    assert found.slice_program() == tmp_path / "bin" / "ggml-rpc-server"
    assert found.devices == ()
    found.needs_rpc()


def test_a_build_without_a_commit_is_its_files(tmp_path: Path) -> None:
    version = "version: 0.6.0-dev (build 0, commit unknown)"
    one = find(install(tmp_path / "one", version=version), ENV)
    same = find(install(tmp_path / "same", version=version), ENV)
    other = find(install(tmp_path / "other", version=version, help_="other"), ENV)
    assert one.build.commit == same.build.commit == f"0-unknown-{one.build.digest}"
    assert other.build.commit != one.build.commit


def test_another_digest_beside_the_same_commit(tmp_path: Path) -> None:
    one, other = install(tmp_path / "one"), install(tmp_path / "other")
    (other / "libggml-cuda.so").write_bytes(b"more")
    assert find(one, ENV).build.commit == find(other, ENV).build.commit
    assert find(one, ENV).build.digest != find(other, ENV).build.digest


def test_what_is_replaced_is_asked_again(tmp_path: Path) -> None:
    folder = install(tmp_path / "bin")
    find(folder, ENV)
    install(folder, version="version: 11500 (ffffffff)")
    assert find(folder, ENV).build.commit == "11500-ffffffff"


def test_gpus_are_named(tmp_path: Path) -> None:
    devices = "  CUDA0: NVIDIA X (80000 MiB, 79000 MiB free)\\n  CUDA1: NVIDIA X (80000 MiB)\\n"
    assert find(install(tmp_path / "bin", devices=devices), ENV).devices == ("CUDA0", "CUDA1")


def test_a_program_on_path_is_taken_with_what_lies_beside_it(tmp_path: Path) -> None:
    folder = install(tmp_path / "opt" / "llama")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llama-server").symlink_to(folder / "llama-server")
    found = find(None, {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert found.slice_program() == folder / "ggml-rpc-server"


def test_without_any_the_ways_to_get_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="make llama.*engine"):
        find(None, {"PATH": str(tmp_path)})
    with pytest.raises(EngineError, match="has no program llama-server"):
        find(tmp_path, ENV)


def test_a_build_without_rpc_is_told(tmp_path: Path) -> None:
    found = find(install(tmp_path / "bin", help_="no such flag", rpc=False), ENV)
    with pytest.raises(EngineError, match=r"no ggml-rpc-server.*GGML_RPC=ON"):
        found.slice_program()
    with pytest.raises(EngineError, match="can use no slices"):
        found.needs_rpc()


@pytest.mark.parametrize(
    ("there", "told"), [(True, "its links are missing"), (False, "install llama.cpp as a whole")]
)
def test_a_library_that_is_not_found_says_what_is_missing(
    tmp_path: Path, there: bool, told: str
) -> None:
    said = "llama-server: error while loading shared libraries: libggml.so.0: cannot open"
    program(tmp_path / "llama-server", f"echo '{said}' >&2; exit 127")
    if there:
        (tmp_path / "libggml.so.0.26.0").touch()
    with pytest.raises(EngineError, match=told) as caught:
        find(tmp_path, ENV)
    assert "libggml.so.0" in str(caught.value)


def test_another_program_of_that_name_is_no_llama(tmp_path: Path) -> None:
    program(tmp_path / "llama-server", "echo 'hello there'")
    with pytest.raises(EngineError, match="gives no version of llama.cpp, but: hello there"):
        find(tmp_path, ENV)


def test_one_that_fails_says_so(tmp_path: Path) -> None:
    program(tmp_path / "llama-server", "echo 'Illegal thing' >&2; exit 132")
    with pytest.raises(EngineError, match="ended with 132: Illegal thing"):
        find(tmp_path, ENV)


def test_one_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "ASK_TIMEOUT", 0.2)
    program(tmp_path / "llama-server", "exec sleep 60")
    with pytest.raises(EngineError, match=r"no answer within 0\.2 s"):
        find(tmp_path, ENV)
