"""Hostile lines straight at the bee: it lives, answers, and says nothing that humd would refuse."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests import hostile
from tests.engine_view import EngineView
from tests.raw_humd import turns, under_raw_humd
from tests.rig import egg

SEED = 20260
LINES = 5_000


def traced(entry: dict[str, Any]) -> bool:
    """Whether a log entry is something that Python printed, asyncio's word on slowness aside."""
    raw = entry.get("raw", "")
    return bool(raw) and not raw.startswith("Executing <")


async def test_5000_hostile_lines_leave_every_prompt_with_one_ending(short_dir: Path) -> None:
    owed: Counter[str] = Counter()
    async with under_raw_humd(short_dir, egg(short_dir, name="m1")) as (_, bee, seat):
        for piece in hostile.lines(SEED, LINES):
            owed.update(hostile.prompted(piece))
            if len(piece) % 7:
                seat.raw(piece)
                await seat.drained()
            else:
                await seat.halves(piece)
        await seat.until(lambda: seat.endings.total() >= owed.total())
        assert (await seat.answer("a good prompt"))["chi"] == "finish"
        assert (await seat.answer("another"))["chi"] == "finish"
        for sid in owed:
            assert len(turns(seat.tones[sid])) == owed[sid]
        assert seat.endings - owed == Counter({"a good prompt": 1, "another": 1})
        assert seat.refused == []
        await EngineView(short_dir, "m1").works_on(0)
        errors = [e for e in bee.log() if e.get("level") in ("error", "critical") or traced(e)]
        assert errors == []
    assert owed.total() > LINES / 10
