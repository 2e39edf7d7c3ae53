"""A slice's bee that is stopped: the coordinator says so, as nothing has failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.leftovers import assert_nothing_left
from tests.real_llama.route_stage import START, routed
from tests.rig import ended

pytestmark = [pytest.mark.llama, pytest.mark.xdist_group("llama"), pytest.mark.timeout(300)]


async def test_a_slice_that_was_stopped_is_a_warning_without_a_log_to_look_into(
    short_dir: Path,
) -> None:
    async with routed(short_dir, 2) as stage:
        assert ended(await stage.ask(tokens=2))["chi"] == "finish"
        (planned,) = stage.front.events("worker.route")
        assert len(stage.front.events("worker.route.share")) == planned["slices"] == 2
        assert await stage.slices[0].stop() == 0
        async with asyncio.timeout(START):
            while not (lines := stage.front.events("worker.cell.emerged")):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        (line,) = lines
        assert (line["level"], line["death"]) == ("warning", "slice")
        assert line["reason"].endswith("was lost: the slice was stopped")
        assert " log" not in line["advice"]
        assert [one for one in stage.front.log() if one.get("level") == "error"] == []
    assert_nothing_left(short_dir)
