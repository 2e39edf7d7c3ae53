"""The demo as a person runs it, with the scripted engine in vLLM's place."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.liveness import WAIT
from tests.rig import ROOT, egg


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    yield path
    shutil.rmtree(path)


async def start(folder: Path, egg: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scripts.demo", "--egg", str(egg), "--prompt", "hello"),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def finish(demo: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(WAIT):
        out, _ = await demo.communicate()
    return out.decode()


def named(folder: Path) -> list[str]:
    """Processes that have the folder in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


def only(folder: Path, *names: str) -> bool:
    return sorted(path.name for path in folder.iterdir()) == sorted(names)


async def test_an_answer_comes_and_nothing_is_left(folder: Path) -> None:
    demo = await start(folder, egg(folder, name="small"))
    out = await finish(demo)
    assert demo.returncode == 0, out
    assert "engine: canary" in out
    assert "time to first token" in out
    assert "memory of tender" in out
    assert out.splitlines()[-1].startswith("all processes, sockets and folders are gone")
    assert only(folder, "small.toml", "model")
    assert named(folder) == []


async def test_an_engine_that_cannot_start_is_an_exit_code_and_a_line(folder: Path) -> None:
    fake = {"failure": "kv_too_big"}
    path = egg(folder, name="small", fake=fake, extra='[lifecycle]\nstart_timeout = "5s"')
    demo = await start(folder, path)
    out = await finish(demo)
    assert demo.returncode == 1, out
    assert "KV cache" in out.splitlines()[-1]
    assert only(folder, "small.toml", "model")


@pytest.mark.parametrize("mark", ["starting vllm-worker", "engine: ", "> hello"])
async def test_a_signal_at_any_moment_leaves_nothing(folder: Path, mark: str) -> None:
    demo = await start(folder, egg(folder, name="small"))
    assert demo.stdout is not None
    async with asyncio.timeout(WAIT):
        while mark.encode() not in await demo.stdout.readline():
            pass
    demo.send_signal(signal.SIGINT)
    out = await finish(demo)
    assert demo.returncode in (130, 0), out  # 0: the answer was all there already
    assert "Traceback" not in out
    assert only(folder, "small.toml", "model")
    assert named(folder) == []
