"""A few deaths of `bench.llama_deaths`, and what becomes of a route when slices come and go."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from bench.llama_deaths import ALL, MOMENTS, SHORT, as_json, flaws, table
from bench.llama_deaths_run import Case, Outcome, run, staged
from bench.llama_seats import Seat, until
from hum_workers import lifecycle
from tests.leftovers import assert_nothing_left
from tests.real_llama.route_stage import NAME, slice_egg
from tests.rig import ended

pytestmark = [pytest.mark.llama, pytest.mark.xdist_group("llama"), pytest.mark.timeout(300)]
HOLD_BACK = 4.0


@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
async def test_a_death_is_told_once_and_everything_comes_back(case: Case) -> None:
    lifecycle.become_subreaper()
    outcome = await run(case)
    assert list(flaws(case, outcome)) == []


async def test_a_route_outlives_a_newcomer_and_is_planned_anew_without_the_lost(
    short_dir: Path,
) -> None:
    lifecycle.become_subreaper()
    async with staged(short_dir, f'hold_back = "{HOLD_BACK:g}s"\n') as stage:
        await stage.humd.until(lambda: stage.humd.serves(NAME), timeout=60)
        spare = Seat("slice-3", short_dir, slice_egg(short_dir, 3), stage.stack)
        await spare.start()
        await until(spare.ready)
        answer = await stage.asker.ask("Hi.", NAME, timeout=60, sampling={"maxTokens": 4})
        assert ended(answer)["chi"] == "finish"
        assert len(list(stage.front.events("worker.cell.spawned"))) == 1

        known = stage.front.ready()
        lost = stage.slices[0]
        began = asyncio.get_running_loop().time()
        os.kill(lost.bee.pid, signal.SIGKILL)
        await lost.bee.process.wait()
        await until(lambda: stage.front.ready() - known)
        assert asyncio.get_running_loop().time() - began > HOLD_BACK
        assert not stage.humd.serves("anything else")
        assert list(spare.events("worker.slice.leased"))
        answer = await stage.asker.ask("Hi.", NAME, timeout=60, sampling={"maxTokens": 4})
        assert ended(answer)["chi"] == "finish"
        reasons = [line.fields["reason"] for line in stage.front.events("worker.route.withdrawn")]
        assert reasons
        assert "slice slice-1 at " in reasons[0]
    assert_nothing_left(short_dir)


def test_the_matrix_has_each_case_once_at_each_moment() -> None:
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names)
    assert {case.moment for case in ALL} == set(MOMENTS)
    assert {case.name for case in SHORT} <= set(names)


def test_a_promise_that_was_broken_is_told() -> None:
    case = Case("slice-1", "engine", "streaming")
    message = "cell front-1 died: slice slice-1 at 127.0.0.1:7 was lost: rpc-server closed"
    good = Outcome(tone=0.1, code="cell_died", message=message, endings=1, recycled=2.0)
    assert list(flaws(case, good)) == []
    assert table([(case, good)]).splitlines()[-1] == (
        "| SIGKILL of slice-1's rpc-server | streaming | 0.10 cell_died | 0.00 | 0.00 | 2.00 "
        "| 0.00 | – |"
    )
    bad = Outcome(tone=9.0, code="cell_died", message="it died", endings=2, recycled=99.0)
    assert len(list(flaws(case, bad))) == 3
    assert '"broken": 1' in as_json([(case, good), (case, bad)])
