"""LastingNest over real tenders: raises, restarts, slots, refusals, stops."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hum_workers import lifecycle
from hum_workers.cells.blame import Diagnosis
from hum_workers.cells.cell import Cell
from hum_workers.cells.lasting import LastingNest
from hum_workers.cells.nest import Lease
from hum_workers.cells.plan import NestLimits, NestPlan
from hum_workers.errors import EngineError, ErrorCode, TurnError
from hum_workers.spec import CellSpec
from hum_workers.vllm_worker import failure
from tests.leftovers import processes
from tests.tenders import chat, spec
from tests.test_cell import Turn

WAIT = 20.0


class Scripted:
    """Raises one scripted engine after the other; the last script is for all that follow."""

    def __init__(self, folder: Path, *scripts: Mapping[str, Any] | Exception) -> None:
        self.raised: list[str] = []
        self._folder = folder
        self._scripts = scripts or ({},)

    def spec(self, cell_id: str, away: Mapping[str, str]) -> CellSpec:
        script = self._scripts[min(len(self.raised), len(self._scripts) - 1)]
        self.raised.append(cell_id)
        if isinstance(script, Exception):
            raise script
        private = self._folder / cell_id
        raised = spec(self._folder, script, cell_id=cell_id, private=str(private))
        uds = str(private / "engine.sock")
        argv = [uds if arg == raised.uds else arg for arg in raised.argv]
        return spec(self._folder, script, cell_id=cell_id, private=str(private), uds=uds, argv=argv)

    def diagnose(self, lines: Sequence[str]) -> Diagnosis:
        return failure.diagnosis(lines)


def limits(**changes: Any) -> NestLimits:
    fields = {
        "slots": 2,
        "turn_timeout": WAIT,
        "wait_timeout": WAIT,
        "max_waiting": 8,
        "max_waiting_per_sid": 4,
        "stop_grace": 1.0,
    }
    return NestLimits(**{**fields, **changes})


@asynccontextmanager
async def nest(
    folder: Path,
    *scripts: Mapping[str, Any] | Exception,
    pauses: Callable[[], Iterator[float]] = lambda: iter([0.01] * 9),
    start_slot: asyncio.Semaphore | None = None,
    on_prompt: bool = False,
    name: str = "echo",
    **bounds: Any,
) -> AsyncIterator[tuple[LastingNest, Scripted, list[bool]]]:
    """A nest that was started, its raiser, and whether it was advertised at each change."""
    lifecycle.become_subreaper()
    raiser, changes = Scripted(folder, *scripts), list[bool]()
    plan = NestPlan(
        name=name,
        models=[name, "alias"],
        limits=limits(**bounds),
        on_prompt=on_prompt,
        default_max_tokens=None,
        start_slot=start_slot or asyncio.Semaphore(1),
        on_change=lambda: changes.append(it.advertised),
        pauses=pauses,
    )
    it = LastingNest(plan, raiser)
    it.start()
    try:
        async with asyncio.timeout(WAIT):
            yield it, raiser, changes
            await it.stop(1.0, "the test is over")
    finally:
        it.kill()
        assert await it.buried(WAIT)
    assert it.cell is None or list(map(str, processes(Path(it.cell.spec.private)))) == []


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def crash(cell: Cell) -> None:
    os.kill(cell.facts["pid"], signal.SIGKILL)


async def refusal(lease: asyncio.Future[Lease]) -> TurnError:
    with pytest.raises(TurnError) as caught:
        await lease
    return caught.value


async def test_on_start_it_is_advertised_when_its_cell_is_ready(short_dir: Path) -> None:
    async with nest(short_dir) as (it, raiser, changes):
        assert not it.advertised
        lease = await it.lease()
        assert (it.advertised, changes, raiser.raised) == (True, [True], ["echo-1"])
        turn = Turn()
        lease.cell.feed(chat(tokens=2), turn)
        await turn.ended()
        assert turn.text == "w0 w1"
        lease.release()


async def test_on_prompt_it_is_advertised_at_once_and_raised_by_the_first_turn(
    short_dir: Path,
) -> None:
    async with nest(short_dir, on_prompt=True) as (it, raiser, _):
        assert it.advertised
        await asyncio.sleep(0)
        assert (raiser.raised, it.cells) == ([], [])
        await it.lease()
        await it.lease()
        assert raiser.raised == ["echo-1"]


async def test_a_start_that_fails_withdraws_the_models_and_refuses_every_turn(
    short_dir: Path,
) -> None:
    async with nest(short_dir, {"failure": "bad_config"}, on_prompt=True) as (it, raiser, changes):
        waiting = [it.lease(), it.lease()]
        for lease in waiting:
            error = await refusal(lease)
            assert error.code is ErrorCode.CELL_START_FAILED
            assert error.message.startswith(
                "the engine of echo can't be started: User-specified max_model_len (99999)"
            )
        assert (await refusal(it.lease())).code is ErrorCode.CELL_START_FAILED
        assert (it.advertised, changes, raiser.raised) == (False, [False], ["echo-1"])
        assert it.failure is not None


@pytest.mark.parametrize("error", [EngineError("no vLLM in /x"), RuntimeError("a bug of ours")])
async def test_a_raiser_that_fails_withdraws_the_models(error: Exception, short_dir: Path) -> None:
    async with nest(short_dir, error) as (it, _, changes):
        lease = it.lease()
        assert str(error) in (await refusal(lease)).message
        assert (it.advertised, changes) == (False, [False])


async def test_a_crash_raises_another_cell_after_a_pause_and_prompts_wait(short_dir: Path) -> None:
    asked: list[int] = []

    def pauses() -> Iterator[float]:
        for number in range(9):
            asked.append(number)
            yield 0.01

    async with nest(short_dir, pauses=pauses) as (it, raiser, changes):
        for number in range(2):
            lease = await it.lease()
            assert lease.cell.cell_id == f"echo-{number + 1}"
            crash(lease.cell)
            await lease.cell.emerged
            assert it.advertised
            following = it.lease()
            assert not following.done()
            lease.release()
            (await following).release()
        assert asked == [0, 1]
        assert changes == [True]
        assert raiser.raised == ["echo-1", "echo-2", "echo-3"]


async def test_a_restart_that_fails_is_tried_again_while_the_models_stay(short_dir: Path) -> None:
    dies = {"exit_at": {"stage": "load", "code": 1, "line": "Oops"}}
    async with nest(short_dir, {}, dies, dies, {}) as (it, raiser, changes):
        lease = await it.lease()
        crash(lease.cell)
        await lease.cell.emerged
        following = await it.lease()
        assert following.cell.cell_id == "echo-4"
        assert (it.advertised, it.failure, changes) == (True, None, [True])


async def test_slots_bound_what_is_inside_the_engine_first_come_first_served(
    short_dir: Path,
) -> None:
    async with nest(short_dir, slots=2) as (it, _, _):
        leases = [it.lease() for _ in range(6)]
        await asyncio.wait(leases[:2])
        assert [lease.done() for lease in leases] == [True, True, False, False, False, False]
        assert it.waiting == 4
        leases[2].cancel()
        await asyncio.sleep(0)
        assert it.waiting == 3
        first = leases[0].result()
        first.release()
        first.release()
        assert [lease.done() for lease in leases[3:]] == [True, False, False]
        leases[3].result().release()
        leases[1].result().release()
        assert [lease.done() for lease in leases[4:]] == [True, True]


async def test_slots_of_a_dead_cell_do_not_count_for_the_next(short_dir: Path) -> None:
    async with nest(short_dir, slots=2) as (it, _, _):
        old = [await it.lease(), await it.lease()]
        crash(old[0].cell)
        await old[0].cell.emerged
        new = [await it.lease(), await it.lease()]
        for lease in old:
            lease.release()
        third = it.lease()
        assert not third.done()
        new[0].release()
        assert third.done()


async def test_a_queue_that_is_full_refuses_and_says_why(short_dir: Path) -> None:
    async with nest(short_dir, {"hang_at": "load"}, max_waiting=3) as (it, _, _):
        waiting = [it.lease() for _ in range(3)]
        error = await refusal(it.lease())
        assert error.code is ErrorCode.NO_CAPACITY
        assert "3 prompts wait for echo already ([limits] max_waiting)" in error.message
        assert "its cell is not ready" in error.message
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert not it.lease().done()


@pytest.mark.parametrize("stage", ["spec", "load", "chat"])
async def test_a_stop_while_it_hatches_refuses_the_turns_that_wait(
    stage: str, short_dir: Path
) -> None:
    async with nest(short_dir, {"hang_at": stage, "ignore_sigterm": True}) as (it, _, _):
        waiting = [it.lease(), it.lease()]
        if stage != "spec":
            await until(lambda: it.cell is not None and it.cell.mark)
        await it.stop(3600.0, "enough")
        for lease in waiting:
            error = await refusal(lease)
            assert (error.code, error.message) == (ErrorCode.SHUTTING_DOWN, "the bee stops: enough")
        assert (await refusal(it.lease())).code is ErrorCode.SHUTTING_DOWN
        assert not it.advertised
        assert it.cell is None or it.cell.emerged.done()


async def test_a_stop_in_the_pause_before_a_restart_does_not_wait_for_it(short_dir: Path) -> None:
    async with nest(short_dir, pauses=lambda: iter([3600.0])) as (it, raiser, _):
        lease = await it.lease()
        crash(lease.cell)
        await lease.cell.emerged
        waiting = it.lease()
        await it.stop(1.0, "enough")
        assert (await refusal(waiting)).code is ErrorCode.SHUTTING_DOWN
        assert raiser.raised == ["echo-1"]


async def test_a_death_in_a_drain_raises_nothing_and_lets_nobody_wait(short_dir: Path) -> None:
    async with nest(short_dir, slots=1) as (it, raiser, _):
        lease = await it.lease()
        waiting = it.lease()
        it.drain()
        crash(lease.cell)
        assert (await refusal(waiting)).code is ErrorCode.SHUTTING_DOWN
        assert raiser.raised == ["echo-1"]


async def test_a_drain_still_serves_the_turns_that_wait(short_dir: Path) -> None:
    async with nest(short_dir, slots=1) as (it, _, _):
        lease = await it.lease()
        waiting = it.lease()
        it.drain()
        lease.release()
        assert (await waiting).cell is lease.cell


async def test_in_a_drain_no_cell_is_raised_for_a_turn_that_comes_late(short_dir: Path) -> None:
    async with nest(short_dir, on_prompt=True) as (it, raiser, _):
        it.drain()
        assert (await refusal(it.lease())).code is ErrorCode.SHUTTING_DOWN
        assert raiser.raised == []


async def test_cells_of_a_host_start_one_by_one(short_dir: Path) -> None:
    slot = asyncio.Semaphore(1)
    async with (
        nest(short_dir, {"hang_at": "load"}, start_slot=slot, name="one") as (first, _, _),
        nest(short_dir, {}, start_slot=slot, name="two") as (second, raiser, _),
    ):
        await until(lambda: first.cell is not None and first.cell.mark)
        assert raiser.raised == []
        waiting = second.lease()
        await first.stop(0, "make room")
        assert (await waiting).cell.cell_id == "two-1"


async def test_kill_is_synchronous_and_takes_everything(short_dir: Path) -> None:
    wild = {"double_fork": True, "ignore_sigterm": True}
    async with nest(short_dir, wild) as (it, _, _):
        lease = await it.lease()
        it.kill()
        assert not it.advertised
        assert await it.buried(5)
        assert (await lease.cell.emerged).asked
