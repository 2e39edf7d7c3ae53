"""Stacks of a process that hangs, for the log of its engine: by py-spy where it is installed.

Without it, a Python that was started with PYTHONFAULTHANDLER writes them itself on SIGABRT, and
ends. So this is for processes that are killed next.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hum_workers.process import proc
from hum_workers.process.child import spawn

PER_PROCESS = 5.0
"""Seconds that py-spy may take for one process."""
PROCESSES = 8
LIMIT = 64 * 1024
"""Bytes of stacks of one process."""
WRITING = 0.5
"""Seconds that processes have to write their own stacks."""


def find_py_spy(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Returns py-spy of the engine's environment, of ours or of the PATH."""
    folders = [os.path.dirname(part) for part in argv if os.path.isabs(part)][:4]
    folders += [str(Path(sys.executable).parent), env.get("PATH", os.defpath)]
    return shutil.which("py-spy", path=os.pathsep.join(folders))


async def by_py_spy(program: str, pid: int) -> bytes:
    """Returns the stacks of one process, or why there are none."""
    read_end, write_end = os.pipe()
    loop = asyncio.get_running_loop()
    try:
        argv = [program, "dump", "--pid", str(pid)]
        child = spawn(argv, env=None, cwd="/", stdout=write_end, stderr=write_end)
    except OSError as error:
        os.close(read_end)
        return f"py-spy: {error.strerror}\n".encode()
    finally:
        os.close(write_end)
    os.set_blocking(read_end, False)
    kept = bytearray()

    def read() -> None:
        try:
            data = os.read(read_end, 1 << 16)
        except BlockingIOError:
            return
        kept.extend(data[: LIMIT - len(kept)])
        if not data:
            loop.remove_reader(read_end)

    loop.add_reader(read_end, read)
    try:
        await asyncio.wait({child.exited}, timeout=PER_PROCESS)
        if not child.exited.done():
            kept += f"\npy-spy: no answer within {PER_PROCESS:g} s".encode()
        read()
    finally:
        child.close()
        loop.remove_reader(read_end)
        os.close(read_end)
    return bytes(kept).rstrip(b"\n") + b"\n"


async def dump(
    pids: Sequence[int], argv: Sequence[str], env: Mapping[str, str]
) -> tuple[bytes, str]:
    """Returns what py-spy says of the processes, and in a word how stacks were had.

    `argv` and `env` are the engine's. Without py-spy the processes are told to write for
    themselves, if they can; then nothing is returned, as it comes with the engine's output.
    """
    program = find_py_spy(argv, env)
    if program is not None:
        text = b""
        for pid in pids[:PROCESSES]:
            text += f"--- py-spy dump --pid {pid}\n".encode() + await by_py_spy(program, pid)
        return text, "by py-spy"
    if not env.get("PYTHONFAULTHANDLER"):
        return b"", ""
    for pid in pids[:PROCESSES]:
        stat = proc.read_stat(pid)
        if stat is not None:
            proc.send(stat, signal.SIGABRT)
            # A stopped process takes no signal but these two.
            proc.send(stat, signal.SIGCONT)
    await asyncio.sleep(WRITING)
    return b"", "by faulthandler"
