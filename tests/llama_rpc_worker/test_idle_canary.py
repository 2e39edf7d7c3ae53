"""A prompt of our own while nobody asks, at a real tender with the scripted engine."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from hum_workers.llama_rpc_worker.idle_canary import IdleCanary
from tests.tenders import spec
from tests.test_cell import WAIT, cell


@pytest.mark.parametrize(
    ("stall_timeout", "patience", "why"),
    [(0.5, WAIT, "failed: the engine stalled"), (WAIT, 0.5, "no answer for 0.5 s to a prompt")],
)
async def test_an_engine_that_hangs_while_nobody_asks_is_found(
    stall_timeout: float, patience: float, why: str, short_dir: Path
) -> None:
    async with cell(short_dir, spec(short_dir, stall_timeout=stall_timeout)) as it:
        await it.ready()
        told: asyncio.Queue[str] = asyncio.Queue()
        canary = IdleCanary(told.put_nowait, period=0.05, patience=patience)
        os.kill(it.facts["pid"], signal.SIGSTOP)
        canary.watch(it, "echo", lambda: False)
        assert why in await asyncio.wait_for(told.get(), WAIT)
        canary.close()


async def test_an_engine_that_answers_is_asked_again_but_never_while_it_is_busy(
    short_dir: Path,
) -> None:
    async with cell(short_dir, spec(short_dir)) as it:
        await it.ready()
        looks = 0
        often = asyncio.Event()

        def busy() -> bool:
            nonlocal looks
            looks += 1
            if looks == 4:
                often.set()
            return looks % 2 == 0

        told: list[str] = []
        canary = IdleCanary(told.append, period=0.02)
        canary.watch(it, "echo", busy)
        await asyncio.wait_for(often.wait(), WAIT)
        canary.close()
        assert told == []
