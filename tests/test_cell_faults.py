"""Ends of a cell for a fault that is not its own, and what a silent engine waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from hum_workers.cells.emerged import Fault
from hum_workers.errors import StartFailed
from hum_workers.figures.counts import Death
from hum_workers.frames import Mmm
from tests.tenders import chat, spec
from tests.test_cell import Turn, cell, stream


async def test_an_end_for_the_fault_of_others_is_a_death_that_says_so(short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir)) as it:
        await it.ready()
        turn = await stream(it)
        emerged = await it.silence(0, "slice b was lost", Fault(Death.SLICE))
        assert (emerged.asked, emerged.death, emerged.by) == (False, Death.SLICE, "us")
        assert emerged.reason == "slice b was lost"
        [(kind, data)] = turn.endings
        assert (kind, data["code"]) == (Mmm.ERROR, "cell_died")
        assert "slice b was lost; look into the log" in data["message"]
        assert await it.silence(5, "the bee stops") is emerged


async def test_a_start_that_ends_for_the_fault_of_others_has_failed_for_it(
    short_dir: Path,
) -> None:
    async with cell(short_dir, spec(short_dir, {"hang_at": "load"})) as it:
        await it.silence(0, "slice b was lost", Fault(Death.SLICE))
        with pytest.raises(StartFailed, match="slice b was lost") as caught:
            await it.ready()
        assert caught.value.kind == Death.SLICE


async def test_an_engine_that_stalls_is_said_to_wait_for_what_is_known(short_dir: Path) -> None:
    raised = spec(short_dir, stall_timeout=0.5)
    async with cell(short_dir, raised) as it:
        it.hint = lambda: "slice b has not answered"
        await it.ready()
        turn = Turn()
        it.feed(chat(tokens=9, hang="mid_stream"), turn)
        kind, data = await turn.ended()
        assert (kind, data["code"]) == (Mmm.ERROR, "stalled")
        assert data["message"].endswith("; slice b has not answered")
        emerged = await it.emerged
        assert emerged.death is Death.STALLED
        assert "slice b has not answered" in emerged.reason
