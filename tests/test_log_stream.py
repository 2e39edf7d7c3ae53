"""Log lines and their reader: none, a slow one, one that comes late."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from hum_workers.program.log_stream import PatientStream
from tests.rig import WAIT, egg, ended, environment, fake

F_SETPIPE_SZ = 1031


def test_lines_that_nobody_reads_are_dropped_and_told_of_when_they_flow_again() -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
    stream = PatientStream(write, lambda count: f"dropped {count}\n", limit=8192)
    for _ in range(100):
        stream.write("x" * 999 + "\n")
    text = b""
    while b"dropped" not in text:
        text += os.read(read, 65536)
    assert 0 < text.count(b"x" * 999 + b"\n") < 30
    assert b"dropped " in text
    stream.write("after\n")
    stream.finish(5)
    while b"after" not in text:
        text += os.read(read, 65536)
    os.close(read)  # the thread that waits for lines is a daemon and keeps the other end


def test_what_asyncio_complains_of_does_not_wait_for_a_reader_either() -> None:
    script = """
import asyncio, os, sys
from hum_workers.program import logs
logs.configure()
os.write(2, b"." * 4096)
async def main():
    for _ in range(10_000):
        asyncio.get_running_loop().call_exception_handler({"message": "x" * 100})
asyncio.run(main())
os.write(1, b"done")
"""
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
    done = subprocess.run(
        [sys.executable, "-c", script], stderr=write, stdout=subprocess.PIPE, timeout=20
    )
    assert done.stdout == b"done"
    os.close(read)
    os.close(write)


async def test_a_bee_whose_log_nobody_reads_answers_and_stops(short_dir: Path) -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
    os.set_blocking(write, False)
    while True:
        try:
            os.write(write, b"." * 512)
        except BlockingIOError:
            break
    os.set_blocking(write, True)
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
        bee = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hum_workers.vllm_worker", "--egg", str(egg(short_dir))),
            env=environment(short_dir),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=write,
        )
        try:
            await humd.until(lambda: humd.serves("echo"), timeout=WAIT)
            async with await Asker.connect(short_dir / "thrum.sock") as asker:
                answer = await asker.ask(fake(tokens=3), "echo")
            assert ended(answer)["chi"] == "finish"
            bee.send_signal(signal.SIGTERM)
            async with asyncio.timeout(WAIT):
                assert await bee.wait() == 0
        finally:
            if bee.returncode is None:
                bee.kill()
                await bee.wait()
            os.close(read)
            os.close(write)


@pytest.mark.parametrize("closed", [0, 1, 2])
async def test_a_bee_with_a_closed_standard_file_serves_and_stops(
    short_dir: Path, closed: int
) -> None:
    how = "<&-" if closed == 0 else f"{closed}>&-"
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
        bee = await asyncio.create_subprocess_exec(
            *("sh", "-c", f'exec "$@" {how}', "sh", sys.executable, "-m"),
            *("hum_workers.vllm_worker", "--egg", str(egg(short_dir))),
            env=environment(short_dir),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await humd.until(lambda: humd.serves("echo"), timeout=WAIT)
            bee.send_signal(signal.SIGTERM)
            async with asyncio.timeout(WAIT):
                assert await bee.wait() == 0
        finally:
            if bee.returncode is None:
                bee.kill()
                await bee.wait()


def test_what_a_program_says_last_stands_behind_its_log() -> None:
    script = """
import structlog
from hum_workers.program import logs
logs.configure()
for n in range(100):
    structlog.get_logger().info("worker.test", n=n)
logs.say_last("that was it")
"""
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, timeout=20)
    lines = done.stderr.splitlines()
    assert len(lines) == 101
    assert lines[-1] == b"that was it"
