"""The engine's own help as a set of flags, and flags that it does not know."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hum_workers.vllm_worker.engine_help import (
    MARK,
    cache_folder,
    cached_flags,
    known_help,
    parse_help,
    read_answer,
)
from hum_workers.vllm_worker.flag_values import Flag
from hum_workers.vllm_worker.probe import probe
from tests.rig import SITE
from tests.vllm_worker.hatchery import engine

ENV = {"PYTHONPATH": str(SITE), "PATH": os.environ["PATH"]}

HELP = """\
usage: vllm serve [model_tag] [options]
options:
  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT  How many --processes.
  --enable-prefix-caching, --no-enable-prefix-caching
                        Whether -x is on.
  -O OPTIMIZATION_LEVEL, --optimization-level OPTIMIZATION_LEVEL
   --json-arg.key4+ value3
"""


def test_flags_are_read_from_names_and_not_from_prose() -> None:
    flags = parse_help(HELP)
    assert {"--api-server-count", "-asc", "--no-enable-prefix-caching", "-O"} <= flags
    assert not {"--processes", "-x"} & flags


def test_the_help_is_asked_once_for_each_install(tmp_path: Path) -> None:
    installed = probe(sys.executable, ENV)
    assert cached_flags(installed, tmp_path) is None
    known = known_help(installed, ENV, tmp_path)
    assert known is not None
    flags = known.names()
    assert {"--uds", "--kv-cache-memory-bytes", "-tp", "--no-enable-chunked-prefill"} <= flags
    assert cached_flags(installed, tmp_path) == flags
    assert known_help(installed, {"PATH": "/nowhere"}, tmp_path) == known
    assert cached_flags(engine(python=installed.python), tmp_path) is None


def test_a_help_that_is_none_is_not_remembered(tmp_path: Path) -> None:
    installed = engine(python="/bin/true")
    assert known_help(installed, {}, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/sleep"])
def test_an_engine_without_an_answer_knows_nothing(tmp_path: Path, python: str) -> None:
    assert known_help(engine(python=python), {}, tmp_path, timeout=0.2) is None


def test_a_damaged_cache_is_no_cache(tmp_path: Path) -> None:
    installed = probe(sys.executable, ENV)
    known_help(installed, ENV, tmp_path)
    next(tmp_path.iterdir()).write_bytes(b"\xff[")
    assert cached_flags(installed, tmp_path) is None


def test_the_cache_lies_where_xdg_says() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/hum_workers")
    assert cache_folder({"HOME": "/h"}) == Path("/h/.cache/hum_workers")


def answer(**row: object) -> str:
    """Returns a help as the script prints it, with one flag beside it."""
    flag = {"names": ["--x"], "nargs": None, "choices": [], "metavar": "", "takes": []} | row
    said = {"flags": [flag], "methods": {"quantization": ["b", "a"]}}
    return f"  --from-the-text\n{MARK}{json.dumps(said)}\n"


@pytest.mark.parametrize(
    ("row", "flag"),
    [
        ({}, Flag(("--x",), 1, 1)),
        ({"nargs": 0, "names": ["--x", "--no-x"]}, Flag(("--x", "--no-x"), 0, 0)),
        ({"nargs": "+"}, Flag(("--x",), 1, None)),
        ({"nargs": "?"}, Flag(("--x",), 0, 1)),
        ({"nargs": "*"}, Flag(("--x",), 0, None)),
        ({"nargs": 2}, Flag(("--x",), 2, 2)),
        ({"choices": ["1", "2"]}, Flag(("--x",), 1, 1, ("1", "2"))),
        ({"metavar": "{a,b} or one of a plugin"}, Flag(("--x",), 1, 1, ("a", "b"), True)),
        ({"metavar": "['a', 'b']"}, Flag(("--x",), 1, 1, ("a", "b"), True)),
        ({"metavar": ["a", "b"]}, Flag(("--x",), 1, 1, ("a", "b"), True)),
        ({"metavar": "SEED", "takes": ["12"]}, Flag(("--x",), 1, 1, takes=("12",))),
    ],
)
def test_a_flag_is_read_as_its_parser_declares_it(row: dict[str, object], flag: Flag) -> None:
    known = read_answer(answer(**row))
    assert known.flags == (flag,)
    assert known.methods == {"quantization": ("a", "b")}


@pytest.mark.parametrize("said", ["", f"{MARK}[", f"{MARK}{{}}", f"{MARK}[1]", f"{MARK}null"])
def test_where_the_parser_can_not_be_read_the_text_names_the_flags(said: str) -> None:
    known = read_answer(f"  --from-the-text\n{said}\n")
    assert known.flags == (Flag(("--from-the-text",)),)


def test_the_scripted_engine_tells_of_its_values_as_the_real_one_does(tmp_path: Path) -> None:
    known = known_help(probe(sys.executable, ENV), ENV, tmp_path)
    assert known is not None
    assert "fp8_e5m2" in known.choices("--kv-cache-dtype")
    assert "hermes" in known.choices("--tool-call-parser")
    assert "qwen3" in known.methods["reasoning_parser"]
    assert "awq" in known.methods["quantization"]
