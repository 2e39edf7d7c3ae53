"""The command line among hostile files, names and variables: one line, an exit code, no wait."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hum_workers.egg.files import read_documents
from hum_workers.errors import IdentityError, Mistake, UsageError
from hum_workers.figures.status import shown, span
from hum_workers.figures.status_file import folder, read_all
from hum_workers.media.files import read_image
from hum_workers.program import places
from hum_workers.program.host_check import probe_socket
from hum_workers.program.logs import configure
from hum_workers.thrum.identity import Identity
from hum_workers.thrum.paths import find_socket
from tests.rig import WAIT, egg, environment

Words = list[str | bytes]


async def told(home: Path, *words: str | bytes, out: str = "", **env: str) -> tuple[int, str]:
    """Runs the command and returns its exit code and what it said; fails on a traceback."""
    output = os.open(out or os.devnull, os.O_WRONLY)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hum_workers.vllm_worker", *words),
            env={**environment(home), **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
        )
    finally:
        os.close(output)
    async with asyncio.timeout(WAIT):
        _, said = await process.communicate()
    text = said.decode()
    assert "Traceback" not in text, text
    assert process.returncode is not None
    return process.returncode, text


@pytest.mark.parametrize("name", ["e" * 300 + ".toml", "/".join(["d" * 200] * 30) + "/e.toml"])
async def test_an_egg_with_a_name_that_is_too_long_is_one_line(short_dir: Path, name: str) -> None:
    code, said = await told(short_dir, "--egg", name)
    assert code == 2
    assert said.count("\n") == 1
    assert "File name too long" in said
    assert len(said) < 500


@pytest.mark.parametrize("prompt", [[], ["--prompt", "hi"]])
async def test_a_state_folder_that_can_not_be_made_is_one_line(
    short_dir: Path, prompt: list[str]
) -> None:
    home = short_dir / "state" / "hum"
    home.mkdir(parents=True)
    (home / "workers").write_text("a file")
    code, said = await told(short_dir, "--egg", str(egg(short_dir)), *prompt)
    assert code == 2, said
    assert str(home / "workers") in said
    assert len([line for line in said.splitlines() if not line.startswith("{")]) == 1


@pytest.mark.parametrize("flag", ["--prompt", "--system"])
async def test_a_prompt_that_is_no_utf_8_is_refused_at_once(short_dir: Path, flag: str) -> None:
    words: Words = ["--egg", str(egg(short_dir)), "--prompt", "hi", flag, b"\xff\xfe"]
    code, said = await told(short_dir, *words)
    assert code == 2
    assert f"{flag}: is no UTF-8" in said


async def test_a_number_of_thousands_of_digits_is_a_short_message(short_dir: Path) -> None:
    words = ("--prompt", "hi", "--max-tokens", "9" * 5000)
    code, said = await told(short_dir, *words)
    assert code == 2
    assert len(said.splitlines()[-1]) < 200


@pytest.mark.parametrize("mode", ["--check", "--version", "--egg-schema", "status", "--help"])
async def test_output_that_can_not_be_written_is_one_line(short_dir: Path, mode: str) -> None:
    words = [mode] if mode != "--check" else [mode, "--egg", str(egg(short_dir))]
    code, said = await told(short_dir, *words, out="/dev/full")
    assert code == 1
    assert said == "standard output can't be written: No space left on device\n"


async def test_a_runtime_folder_that_is_no_utf_8_is_one_line(short_dir: Path) -> None:
    bad = os.fsdecode(os.fsencode(short_dir) + b"/\xff")
    code, said = await told(short_dir, "--egg", str(egg(short_dir)), XDG_RUNTIME_DIR=bad)
    assert code == 2
    assert "set XDG_RUNTIME_DIR to another folder" in said


def test_a_relative_runtime_folder_is_ignored() -> None:
    env = {"XDG_RUNTIME_DIR": "here", "XDG_STATE_HOME": "/nowhere"}
    assert find_socket(env, 7, exists=lambda path: False) == Path("/run/user/7/hum/thrum.sock")
    assert places.cells_folder(env, os.getuid()).is_absolute()


def test_a_state_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "hum").write_text("")
    with pytest.raises(UsageError, match=r"hum/workers/hive: can't be made"):
        places.engine_log(tmp_path, "hive", "tag", "egg")


def test_a_dangling_link_is_called_one(tmp_path: Path) -> None:
    link = tmp_path / "egg.toml"
    link.symlink_to("gone.toml")
    (mistake,) = read_documents([link])
    assert isinstance(mistake, Mistake)
    assert mistake.message == "is a link to gone.toml, which is not there"


def test_only_a_regular_file_is_a_key_a_log_an_image_or_a_status(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is no regular file"):
        read_image(pipe)
    with pytest.raises(UsageError, match="is no regular file"):
        configure(file=pipe)
    key = Identity.peek("hive", None, tmp_path).path
    key.parent.mkdir(parents=True)
    os.mkfifo(key)
    for use in (Identity.peek, Identity.load):
        with pytest.raises(IdentityError, match="is no regular file"):
            use("hive", None, tmp_path)
    home = folder(tmp_path, "hive")
    home.mkdir(parents=True, exist_ok=True)
    os.mkfifo(home / "bee.1.json")
    (home / "bee.2.json").symlink_to("/dev/zero")
    assert read_all(tmp_path, "hive") == []
    runtime = tmp_path / "hum" / "runtime.json"
    os.mkfifo(runtime)
    assert find_socket({"XDG_STATE_HOME": str(tmp_path)}, 7)


def test_what_a_status_file_says_can_not_move_the_cursor() -> None:
    assert shown("a\x1b[2Jb\nc") == "a [2Jb c"
    assert len(shown("x" * 10_000)) == 100
    assert span(1e308) == "10000d 0h"


def test_a_socket_path_that_is_something_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file"):
        finding = probe_socket(path)
        assert (finding.level, "is no socket" in finding.message) == ("error", True)
