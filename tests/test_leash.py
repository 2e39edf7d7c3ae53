"""A tender that is stopped hangs nobody: it is killed in time, and its tree with it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from hum_workers.cells import leash
from hum_workers.figures.counts import Death
from hum_workers.frames import Mmm
from tests.leftovers import all_end, processes
from tests.rig import egg, served
from tests.tenders import chat, spec
from tests.test_cell import Turn, cell


async def test_a_tender_stopped_while_it_serves_is_killed_and_its_turn_fails(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leash, "SILENCE", 3.0)
    async with cell(short_dir, spec(short_dir, {"hang": True})) as it:
        await it.ready()
        assert it.mark is not None
        turn = Turn()
        os.kill(it.mark, signal.SIGSTOP)
        it.feed(chat(), turn)
        kind, data = await turn.ended()
        assert (kind, data["code"]) == (Mmm.ERROR, "cell_died")
        emerged = await it.emerged
        assert (emerged.death, emerged.by) == (Death.TENDER, "us")
        assert "said nothing for 3 s" in emerged.reason
        await all_end(processes(short_dir))
        assert not Path(it.spec.private).exists()


@pytest.mark.parametrize("hatching", [False, True])
async def test_a_stop_ends_a_cell_whose_tender_is_stopped(
    short_dir: Path, hatching: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leash, "LEAVE", 0.5)
    async with cell(short_dir, spec(short_dir, {})) as it:
        if not hatching:
            await it.ready()
        assert it.mark is not None
        os.kill(it.mark, signal.SIGSTOP)
        async with asyncio.timeout(10):
            emerged = await it.silence(60.0 if hatching else 0.2, "asked")
        assert emerged.asked
        await all_end(processes(short_dir))


async def test_a_kill_ends_a_cell_whose_tender_is_stopped(short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir, {})) as it:
        await it.ready()
        assert it.mark is not None
        os.kill(it.mark, signal.SIGSTOP)
        it.kill()
        async with asyncio.timeout(6):
            await it.emerged
        await all_end(processes(short_dir))


async def test_a_loop_that_was_stopped_itself_blames_nobody() -> None:
    lost: list[str] = []
    it = leash.Leash(lost.append, 0.4)
    it.start()
    time.sleep(1.0)  # noqa: ASYNC251
    await asyncio.sleep(0.15)
    assert lost == []
    it.close()


async def test_a_tender_stopped_when_its_bee_is_killed_wakes_and_tidies_up(
    short_dir: Path,
) -> None:
    async with served(short_dir, egg(short_dir)) as (_, bee, _):
        ready = bee.events("worker.cell.spawned")[0]
        found = processes(short_dir)
        os.kill(ready["pid"], signal.SIGSTOP)
        bee.process.kill()
        await bee.process.wait()
        await all_end(found)
        assert list(short_dir.glob("**/engine.sock")) == []


async def test_a_cell_whose_folder_is_removed_dies_at_the_next_turn(short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir, {})) as it:
        await it.ready()
        shutil.rmtree(it.spec.private)
        turns = [Turn() for _ in range(8)]  # connections that are open already still serve
        for turn in turns:
            it.feed(chat(), turn)
        ends = [await turn.ended() for turn in turns]
        assert "cell_died" in [data["code"] for kind, data in ends if kind == Mmm.ERROR]
        async with asyncio.timeout(5):
            assert "its socket is lost" in (await it.emerged).reason
