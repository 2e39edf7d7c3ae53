"""`python -m hum_workers.fake_humd` as an operator runs it: serving, commands, --ask."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hum_workers.fake_humd import FakeHumd
from tests.transcripts import Wire

START = 20.0
"""Seconds an interpreter may take on a busy machine."""


@asynccontextmanager
async def program(*args: str) -> AsyncIterator[Process]:
    """Runs the program and leaves none behind."""
    command = (sys.executable, "-m", "hum_workers.fake_humd", *args)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(START):
        return (await process.stdout.readline()).decode().rstrip("\n")


async def told(process: Process, command: str) -> str:
    """What the program says to a command."""
    assert process.stdin is not None
    process.stdin.write(command.encode() + b"\n")
    return await line(process)


async def output(process: Process) -> tuple[int | None, str, str]:
    """Exit code, standard output, standard error."""
    async with asyncio.timeout(START):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def humd(short_dir: Path, tmp_path: Path) -> AsyncIterator[FakeHumd]:
    async with await FakeHumd.start(short_dir / "thrum.sock", tmp_path) as humd:
        yield humd


async def test_it_serves_obeys_commands_and_leaves_its_files(
    short_dir: Path, tmp_path: Path
) -> None:
    socket = short_dir / "thrum.sock"
    async with program("--socket", str(socket), "--state-home", str(tmp_path)) as process:
        assert await line(process) == f"fake humd listens at {socket}"
        wire = await Wire.open(socket)
        await wire.send({"chi": "hello", "hive": "w", "bee": ["worker"]})
        await wire.settle()
        assert await told(process, "clients") == "1 clients: w; 0 tones dropped"
        assert await told(process, "sing") == "sing: no such command; type help"
        assert (await told(process, "stall soon")).startswith("stall: ")
        assert await told(process, 'send w {"chi":"later"}') == "sent to 1"
        assert [(await wire.next())["chi"] for _ in range(3)] == ["breath", "breath", "later"]
        assert await told(process, "stall 0") == "goes on"
        assert await told(process, "cut") == "1 will be cut"
        assert await told(process, "half-close other") == "0 half closed"
        assert await told(process, "restart") == "restarted"
        await wire.ended()
        await wire.close()
        process.send_signal(signal.SIGTERM)
        assert await output(process) == (0, "", "")
    assert socket.is_socket()
    assert list(json.loads((tmp_path / "hum" / "bees.json").read_bytes())) != []


async def test_ask_prints_the_answer(humd: FakeHumd) -> None:
    wire = await Wire.open(humd.socket)
    await wire.send({"chi": "hello", "hive": "w", "bee": ["worker"], "models": ["m1"]})
    args = ("--ask", "hi", "--model", "m1", "--system", "be brief", "--max-tokens", "3")
    async with program("--socket", str(humd.socket), *args) as process:
        async with asyncio.timeout(START):
            await humd.until(lambda: len(humd.clients) == 2, START)
        assert [(await wire.next())["chi"] for _ in range(2)] == ["breath", "breath"]
        prompt = await wire.next()
        assert (prompt["text"], prompt["systemPrompt"]) == ("hi", "be brief")
        assert prompt["sampling"] == {"maxTokens": 3}
        chunk = {"chi": "chunk", "sid": prompt["sid"], "chunkType": "text_delta"}
        await wire.send(
            {**chunk, "chunkType": "reasoning_delta", "delta": "hm"},
            {**chunk, "delta": "Grüße"},
            {**chunk, "part": {"type": "text", "text": " 😀"}},
            {"chi": "finish", "sid": prompt["sid"]},
        )
        assert await output(process) == (0, "Grüße 😀\n", "")
    await wire.close()


async def test_ask_fails_with_the_error_it_got(humd: FakeHumd) -> None:
    async with program("--socket", str(humd.socket), "--ask", "hi", "--model", "m9") as process:
        code, _, err = await output(process)
    assert (code, err) == (1, "fake_humd: no worker bee advertises model 'm9'\n")


async def test_ask_fails_when_humd_goes_first(humd: FakeHumd) -> None:
    wire = await Wire.open(humd.socket)
    await wire.send({"chi": "hello", "hive": "w", "bee": ["worker"], "models": ["m1"]})
    await wire.settle()
    async with program("--socket", str(humd.socket), "--ask", "hi", "--model", "m1") as process:
        async with asyncio.timeout(START):
            await humd.until(lambda: len(humd.clients) == 2, START)
        assert [(await wire.next())["chi"] for _ in range(3)] == ["breath", "breath", "prompt"]
        humd.kill()
        code, _, err = await output(process)
    assert (code, err) == (1, "fake_humd: humd closed the connection before the answer ended\n")
    await wire.close()


async def test_ask_without_a_humd_says_so(short_dir: Path) -> None:
    async with program("--socket", str(short_dir / "none"), "--ask", "hi") as process:
        code, _, err = await output(process)
    assert code == 1
    assert "no humd answers here" in err


async def test_it_refuses_a_socket_in_use(humd: FakeHumd, tmp_path: Path) -> None:
    args = ("--socket", str(humd.socket), "--state-home", str(tmp_path / "other"))
    async with program(*args) as process:
        code, _, err = await output(process)
    assert (code, "HUM_THRUM_SOCK" in err) == (2, True)
    await (await Wire.open(humd.socket)).close()
