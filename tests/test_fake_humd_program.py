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
from typing import Any

import pytest

from hum_workers.fake_humd import FakeHumd, asking
from hum_workers.fake_humd.state import advertised
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


async def bee(humd: FakeHumd, *models: str) -> Wire:
    """A worker that advertises these models and answers by hand."""
    wire = await Wire.open(humd.socket)
    await wire.send({"chi": "hello", "hive": "w", "bee": ["worker"], "models": list(models)})
    await humd.until(lambda: all(map(humd.serves, models)), START)
    return wire


async def heard(wire: Wire, chi: str) -> dict[str, Any]:
    """The next tone of this kind."""
    async with asyncio.timeout(START):
        while (tone := await wire.next())["chi"] != chi:
            pass
    return tone


async def until_said(process: Process, text: str) -> None:
    """Waits until the text stands in the error output."""
    assert process.stderr is not None
    async with asyncio.timeout(START):
        while text not in (await process.stderr.readline()).decode():
            pass


@pytest.mark.parametrize("answers", [True, False])
async def test_ctrl_c_cancels_the_prompt_and_waits_a_moment_for_its_ending(
    humd: FakeHumd, answers: bool
) -> None:
    wire = await bee(humd, "m1")
    async with program("--socket", str(humd.socket), "--ask", "hi", "--model", "m1") as process:
        prompt = await heard(wire, "prompt")
        await wire.send(
            {"chi": "chunk", "sid": prompt["sid"], "chunkType": "text_delta", "delta": "so far"}
        )
        process.send_signal(signal.SIGINT)
        assert (await heard(wire, "cancel"))["sid"] == prompt["sid"]
        if answers:
            await wire.send({"chi": "finish", "sid": prompt["sid"], "finishReason": "cancelled"})
        code, out, err = await output(process)
    assert (code, out.rstrip("\n")) == (130, "so far")
    told = "fake_humd: the prompt was cancelled (finishReason cancelled)\n"
    assert err == (told if answers else "")
    await wire.close()


async def test_ctrl_c_while_the_program_loads_ends_it_without_a_traceback() -> None:
    command = (sys.executable, "-X", "importtime", "-m", "hum_workers.fake_humd", "--ask", "hi")
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    await until_said(process, " argparse")
    process.send_signal(signal.SIGINT)
    code, _, err = await output(process)
    assert (code, "Traceback" in err) == (-signal.SIGINT, False)


async def test_the_only_model_is_asked_and_several_are_listed(
    humd: FakeHumd, tmp_path: Path
) -> None:
    args = ("--socket", str(humd.socket), "--state-home", str(tmp_path), "--ask", "hi")
    async with program(*args) as process:
        code, _, err = await output(process)
    assert (code, err) == (2, "fake_humd: name the model with --model ID: no bee advertises any\n")
    wire = await bee(humd, "m1")
    async with program(*args) as process:
        prompt = await heard(wire, "prompt")
        assert prompt["modelId"] == "m1"
        await wire.send({"chi": "finish", "sid": prompt["sid"], "finishReason": "stop"})
        assert await output(process) == (0, "\n", "")
    other = await bee(humd, "m0", "m1")
    async with program(*args) as process:
        code, _, err = await output(process)
    assert (code, err) == (2, "fake_humd: name the model with --model ID: there are m0, m1\n")
    await wire.close()
    await other.close()


async def test_the_state_of_another_humd_tells_nothing_of_this_one(
    humd: FakeHumd, tmp_path: Path
) -> None:
    wire = await bee(humd, "m1")
    assert advertised(tmp_path, humd.socket) == ["m1"]
    assert advertised(tmp_path, humd.socket.with_name("other.sock")) is None
    assert advertised(tmp_path / "nowhere", humd.socket) is None
    await wire.close()


async def test_a_bee_that_goes_and_does_not_come_back_is_not_waited_for_for_ever(
    humd: FakeHumd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(asking, "LOOK", 0.02)
    monkeypatch.setattr(asking, "MISSED", 0.1)
    wire = await bee(humd, "m1")
    question = asking.Question(text="hi", socket=humd.socket, home=tmp_path, patience=0.5)
    asked = asyncio.create_task(asking.ask(question))
    await heard(wire, "prompt")
    await wire.close()
    async with asyncio.timeout(START):
        assert await asked == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("fake_humd: no bee serves m1 any more; one may come back for ")
    assert last.startswith("fake_humd: no bee has served m1 for ")


async def test_an_answer_that_was_cut_is_told_from_a_whole_one(humd: FakeHumd) -> None:
    wire = await bee(humd, "m1")
    async with program("--socket", str(humd.socket), "--ask", "hi", "--model", "m1") as process:
        sid = (await heard(wire, "prompt"))["sid"]
        await wire.send(
            {"chi": "chunk", "sid": sid, "chunkType": "text_delta", "delta": "Once upon a"},
            {"chi": "finish", "sid": sid, "finishReason": "length"},
        )
        told = "fake_humd: the answer was cut at its greatest length (finishReason length)\n"
        assert await output(process) == (0, "Once upon a\n", told)
    await wire.close()
