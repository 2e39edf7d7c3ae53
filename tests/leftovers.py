"""Who and what a run left behind: processes that were started with its folder, and its files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from hum_workers.process import proc
from tests.liveness import process_end


def processes(folder: Path) -> list[proc.Stat]:
    """Returns the live processes with this folder in their environment or arguments."""
    found = []
    for stat in proc.scan().values():
        text = (proc.read_bytes(f"/proc/{stat.pid}/environ") or b"") + (
            proc.read_bytes(f"/proc/{stat.pid}/cmdline") or b""
        )
        if stat.alive and stat.pid != os.getpid() and os.fsencode(folder) in text:
            found.append(stat)
    return found


def assert_nothing_left(folder: Path) -> None:
    """Holds a run to its promise: no process, no socket, no folder of a cell."""
    assert list(map(str, processes(folder))) == []
    sockets = [path for path in folder.joinpath("run").rglob("*") if path.is_socket()]
    assert sockets == []
    assert not (folder / "run" / "hum_workers").exists()


async def all_end(found: list[proc.Stat]) -> None:
    """Returns when all of them have ended; waits for the kernel's word on each."""
    for stat in found:
        now = proc.read_stat(stat.pid)
        if now is not None and now.identity == stat.identity and now.alive:
            try:
                await process_end(stat.pid)
            except ProcessLookupError:
                continue
    await asyncio.sleep(0)
