"""One child: its end arrives once, its group dies with a synchronous kill."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from hum_workers.process import child, proc
from hum_workers.process.child import Child, any_end, spawn
from tests.liveness import WAIT, Liveness
from tests.trees import WILD


def python(code: str, stdout: int | None = None) -> Child:
    return spawn([sys.executable, "-I", "-S", "-c", code], env=None, cwd="/", stdout=stdout)


async def test_the_code_arrives_and_a_signal_is_negative() -> None:
    for code, expected in (("raise SystemExit(5)", 5), ("import os; os.kill(os.getpid(), 9)", -9)):
        it = python(code)
        assert it.pid in child.living()
        async with asyncio.timeout(WAIT):
            assert await it.exited == expected
        assert it.pid not in child.living()
        it.close()


async def test_it_gets_its_own_session_our_ignored_sigpipe_and_no_foreign_files() -> None:
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)
    read_end, write_end = os.pipe()
    code = """import os
ignored = next(l for l in open("/proc/self/status") if l.startswith("SigIgn")).split()[1]
print(os.getsid(0) == os.getpid(), int(ignored, 16) >> 12 & 1, len(os.listdir("/proc/self/fd")))"""
    it = python(code, stdout=write_end)
    os.close(write_end)
    os.close(leak)
    async with asyncio.timeout(WAIT):
        await it.exited
    assert os.read(read_end, 100) == b"True 1 4\n"
    os.close(read_end)
    it.close()


async def test_kill_reaches_the_group_even_after_the_leader_is_reaped(alive: Liveness) -> None:
    argv = [sys.executable, WILD, str(alive.path), "--escaped", "0", "--deaf", "yes"]
    it = spawn(argv, env=None, cwd="/")
    await alive.appear(2)
    await alive.tell("main")
    async with asyncio.timeout(WAIT):
        assert await it.exited == 0
    it.kill()
    await alive.all_dead(5)
    it.close()


async def test_close_kills_and_reaps_without_waiting_for_the_loop() -> None:
    it = python("import signal; signal.pause()")
    it.close()
    assert proc.read_stat(it.pid) is None
    assert await it.exited == -signal.SIGKILL
    it.close()
    it.kill()


async def test_what_can_t_be_run_is_an_os_error_and_leaves_nothing() -> None:
    before = child.living()
    with pytest.raises(FileNotFoundError):
        spawn(["/nowhere/engine"], env={}, cwd=None)
    with pytest.raises(NotADirectoryError):
        spawn(["true"], env={}, cwd="/dev/null")
    assert child.living() == before


async def test_any_end_wakes_for_the_first_and_gives_up_in_time() -> None:
    short, long = python("pass"), python("import signal; signal.pause()")
    async with asyncio.timeout(WAIT):
        await any_end([short.pid, long.pid], WAIT)
        await short.exited
        await any_end([long.pid], 0.0)
        await any_end([short.pid], WAIT)
        await any_end([], 0.0)
    long.close()
    short.close()
