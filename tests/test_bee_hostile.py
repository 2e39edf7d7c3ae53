"""Hostile lines straight at the bee: it lives, answers, and says nothing that humd would refuse."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests import hostile
from tests.engine_view import EngineView
from tests.raw_humd import turns, under_raw_humd
from tests.rig import egg

SEED = 20260
LINES = 5_000


async def test_5000_hostile_lines_leave_every_prompt_with_one_ending(short_dir: Path) -> None:
    owed: Counter[str] = Counter()
    async with under_raw_humd(short_dir, egg(short_dir, name="m1")) as (_, bee, seat):
        for piece in hostile.lines(SEED, LINES):
            owed.update(hostile.prompted(piece))
            # Two halves now and then, as a socket brings them.
            middle = len(piece) // 2 if len(piece) % 7 == 0 else 0
            seat.raw(piece[:middle])
            await seat.drained()
            seat.raw(piece[middle:])
        await seat.until(lambda: seat.endings.total() >= owed.total())
        assert (await seat.answer("a good prompt"))["chi"] == "finish"
        assert (await seat.answer("another"))["chi"] == "finish"
        for sid in owed:
            assert len(turns(seat.tones[sid])) == owed[sid]
        assert seat.endings - owed == Counter({"a good prompt": 1, "another": 1})
        assert seat.refused == []
        await EngineView(short_dir, "m1").works_on(0)
        errors = [e for e in bee.log() if e.get("level") in ("error", "critical") or "raw" in e]
        assert errors == []
    assert owed.total() > LINES / 10
