"""`--prompt`: one answer on the terminal, and every way to be interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.leftovers import assert_nothing_left
from tests.rig import WAIT, egg, environment, fake, worker
from tests.test_cli import without_vllm

SLOW = fake(tokens=10_000, rate=50)
WILD = {"double_fork": True, "ignore_sigterm": True, "children": 2}


@asynccontextmanager
async def started(
    folder: Path,
    *args: str | Path,
    stdout: int | IO[Any] = asyncio.subprocess.PIPE,
    quiet: bool = True,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Starts `vllm-worker` in a process group of its own; its log goes to `err` in the folder."""
    with (folder / "err").open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hum_workers.vllm_worker", *map(str, args)),
            env=environment(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=err,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(WAIT):
            yield process
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert not quiet or "Traceback" not in said(folder)
    assert_nothing_left(folder)


def said(folder: Path) -> str:
    return (folder / "err").read_text()


def reasons(folder: Path) -> list[str]:
    """Returns for what reasons the log says that cells were stopped."""
    lines = [json.loads(line) for line in said(folder).splitlines() if line.startswith("{")]
    return [line["reason"] for line in lines if line["event"] == "worker.cell.stopping"]


async def until(folder: Path, text: str) -> None:
    """Waits until a text stands in the log."""
    while text not in said(folder):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_the_answer_is_printed_and_nothing_else(short_dir: Path) -> None:
    code, out, err = await worker(short_dir, "--egg", egg(short_dir), "--prompt", fake(tokens=4))
    assert (code, out) == (0, "w0 w1 w2 w3\n"), err
    assert_nothing_left(short_dir)
    logs = list((short_dir / "state").rglob("*.log"))
    code, _, _ = await worker(short_dir, "--egg", egg(short_dir), "--prompt", fake(tokens=1))
    assert code == 0
    assert list((short_dir / "state").rglob("*.log")) == logs


async def test_a_dash_reads_the_prompt_from_standard_input(short_dir: Path) -> None:
    path = egg(short_dir)
    prompt = fake(text=["Grüße ", "日本"]).encode()
    code, out, _ = await worker(short_dir, "--egg", path, "--prompt", "-", stdin=prompt)
    assert (code, out) == (0, "Grüße 日本\n")
    code, out, err = await worker(short_dir, "--egg", path, "--prompt", "-", stdin=b"\xff\xfe")
    assert (code, out) == (2, "")
    assert err == "--prompt -: standard input is no UTF-8: invalid start byte\n"


async def test_system_prompt_length_and_temperature_reach_the_engine(short_dir: Path) -> None:
    flags = ["--system", "Be brief.", "--max-tokens", "500", "--temperature", "0.5"]
    path = egg(short_dir)
    code, out, err = await worker(
        short_dir, "--egg", path, "--prompt", fake(echo=True, tokens=500), *flags
    )
    assert code == 0, err
    request = json.loads(out)
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (request["max_tokens"], request["temperature"]) == (500, 0.5)


async def test_json_prints_one_tone_a_line_and_the_ending_last(short_dir: Path) -> None:
    path = egg(short_dir)
    code, out, _ = await worker(short_dir, "--egg", path, "--json", "--prompt", fake(tokens=5))
    assert code == 0
    tones = [json.loads(line) for line in out.splitlines()]
    tones = [tone for tone in tones if tone["chi"] != "pulse"]
    assert tones[0]["chi"] == "session-ready"
    assert {tone["chi"] for tone in tones[1:-1]} == {"chunk"}
    assert (tones[-1]["chi"], tones[-1]["finishReason"]) == ("finish", "stop")
    assert "".join(tone.get("delta", "") for tone in tones) == "w0 w1 w2 w3 w4"


async def test_a_signal_after_the_whole_answer_takes_nothing_back(short_dir: Path) -> None:
    path = egg(short_dir, fake=WILD, extra='[lifecycle]\nstop_grace = "500ms"')
    async with started(short_dir, "--egg", path, "--prompt", fake(tokens=2)) as process:
        await until(short_dir, "worker.cell.stopping")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert reasons(short_dir) == ["the prompt was answered"]


async def test_quiet_leaves_the_answer_alone_on_a_terminal_and_keeps_the_errors(
    short_dir: Path,
) -> None:
    path = egg(short_dir)
    prompt = fake(tokens=2, reasoning=3)
    flags = ("--egg", path, "--quiet", "--prompt")
    assert await worker(short_dir, *flags, prompt) == (0, "w0 w1\n", "")
    code, out, err = await worker(short_dir, *flags, fake(error=400))
    assert (code, out, err) == (1, "", "the prompt failed: refused with 400\n")
    to_file = egg(short_dir, extra='[log]\nfile = "worker.log"')
    code, _, err = await worker(short_dir, "--egg", to_file, "--quiet", "--prompt", prompt)
    assert (code, err) == (0, "")
    assert "worker.cell.ready" in (short_dir / "worker.log").read_text()


async def test_reasoning_goes_to_the_other_output(short_dir: Path) -> None:
    path = egg(short_dir)
    prompt = fake(tokens=2, reasoning=3)
    code, out, err = await worker(short_dir, "--egg", path, "--prompt", prompt)
    assert (code, out) == (0, "w0 w1\n")
    assert "r0 r1 r2" in err


async def test_a_turn_that_fails_leaves_with_1_and_one_line(short_dir: Path) -> None:
    path = egg(short_dir)
    code, out, err = await worker(short_dir, "--egg", path, "--prompt", fake(error=400))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "the prompt failed: refused with 400"
    prompt = fake(tokens=4, error="in_stream")
    code, out, err = await worker(short_dir, "--egg", path, "--prompt", prompt)
    assert (code, out) == (1, "w0 w1\n")
    assert err.splitlines()[-1].startswith("the prompt failed: ")
    assert_nothing_left(short_dir)


async def test_an_engine_that_dies_in_the_answer_leaves_with_1(short_dir: Path) -> None:
    prompt = fake(tokens=4, die="mid_stream")
    code, out, err = await worker(short_dir, "--egg", egg(short_dir), "--prompt", prompt)
    assert (code, out) == (1, "w0 w1\n")
    assert "the prompt failed: cell echo-1 died (ready): " in err.splitlines()[-1]
    assert "SIGKILL" in err.splitlines()[-1]
    assert_nothing_left(short_dir)


async def test_an_engine_that_can_not_start_leaves_with_3_and_its_line(short_dir: Path) -> None:
    path = egg(short_dir, fake={"failure": "truncated_weights"})
    code, out, err = await worker(short_dir, "--egg", path, "--prompt", "hi")
    assert (code, out) == (3, "")
    assert err.splitlines()[-1].startswith("SafetensorError: Error while deserializing header")
    assert_nothing_left(short_dir)


async def test_an_interpreter_without_vllm_leaves_with_3_and_one_clear_line(
    short_dir: Path,
) -> None:
    code, out, err = await worker(short_dir, "--egg", without_vllm(short_dir), "--prompt", "hi")
    assert (code, out) == (3, "")
    last = err.splitlines()[-1]
    assert "vLLM" in last
    assert str(short_dir / "python") in last
    assert "Traceback" not in err


async def test_a_prompt_that_can_not_be_written_as_json_is_a_usage_error(short_dir: Path) -> None:
    prompt = os.fsdecode(b"a\xffb")
    code, out, err = await worker(short_dir, "--egg", egg(short_dir), "--prompt", prompt)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("flags", [[], ["--json"]])
async def test_a_reader_that_leaves_ends_it_quietly(flags: list[str], short_dir: Path) -> None:
    async with started(short_dir, "--egg", egg(short_dir), "--prompt", SLOW, *flags) as process:
        assert process.stdout is not None
        await process.stdout.read(10)
        process.stdout._transport.close()  # type: ignore[attr-defined]
        assert await process.wait() == 1
    assert all(line.startswith("{") for line in said(short_dir).splitlines())


async def test_a_full_disk_ends_it_with_a_line(short_dir: Path) -> None:
    with Path("/dev/full").open("wb") as full:  # noqa: ASYNC230
        async with started(
            short_dir, "--egg", egg(short_dir), "--prompt", SLOW, stdout=full
        ) as process:
            assert await process.wait() == 1
    last = said(short_dir).splitlines()[-1]
    assert last == "the answer can't be written: No space left on device"


@pytest.mark.parametrize("whole_group", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_in_the_answer_cancels_it_and_stops_in_order(
    number: signal.Signals, whole_group: bool, short_dir: Path
) -> None:
    path = egg(short_dir, fake={"children": 2})
    async with started(short_dir, "--egg", path, "--json", "--prompt", SLOW) as process:
        assert process.stdout is not None
        while b"w1" not in await process.stdout.readline():
            pass
        (os.killpg if whole_group else os.kill)(process.pid, number)
        rest = [json.loads(line) for line in (await process.stdout.read()).splitlines()]
        assert await process.wait() == 128 + number
        assert reasons(short_dir) == [number.name]
        assert (rest[-1]["chi"], rest[-1]["finishReason"]) == ("finish", "cancelled")
        assert [tone["chi"] for tone in rest].count("finish") == 1


@pytest.mark.parametrize("stage", ["config", "load", "health", "models", "chat"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_while_the_engine_starts_leaves_nothing(
    number: signal.Signals, stage: str, short_dir: Path
) -> None:
    path = egg(short_dir, fake=WILD | {"hang_at": stage})
    async with started(short_dir, "--egg", path, "--prompt", "hi") as process:
        await until(short_dir, {"chat": "canary 1", "models": "listening"}.get(stage, "arguments"))
        os.killpg(process.pid, number)
        assert await process.wait() == 128 + number
        assert reasons(short_dir) == [number.name]


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6])
async def test_ctrl_c_at_any_moment_leaves_nothing(moment: float, short_dir: Path) -> None:
    path = egg(short_dir)
    # While Python imports the program, the traceback is Python's own.
    async with started(short_dir, "--egg", path, "--prompt", SLOW, quiet=False) as process:
        await asyncio.sleep(moment)
        os.killpg(process.pid, signal.SIGINT)
        # And so is the exit code 1 of an interpreter that is interrupted before its first line.
        assert await process.wait() in (130, -signal.SIGINT, *((1,) if moment < 0.1 else ()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_second_signal_does_not_wait_for_the_grace(
    number: signal.Signals, code: int, short_dir: Path
) -> None:
    path = egg(short_dir, fake=WILD, extra='[lifecycle]\nstop_grace = "10m"')
    async with started(short_dir, "--egg", path, "--prompt", SLOW) as process:
        assert process.stdout is not None
        await process.stdout.read(4)
        process.send_signal(number)
        await until(short_dir, "worker.cell.stopping")
        process.send_signal(number)
        assert await process.wait() == code
