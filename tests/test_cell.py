"""Cell with a real tender and the scripted engine: one life, one ending for each turn."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hum_workers import lifecycle
from hum_workers.cells.blame import Diagnosis
from hum_workers.cells.cell import Cell, CellState
from hum_workers.cells.emerged import Emerged
from hum_workers.errors import StartFailed
from hum_workers.figures.counts import Death
from hum_workers.frames import Mmm
from hum_workers.process import confine, proc
from hum_workers.spec import CellSpec
from hum_workers.vllm_worker import failure
from tests.leftovers import all_end, processes
from tests.tenders import chat, spec

WAIT = 20.0
WILD = {"double_fork": True, "ignore_sigterm": True, "children": 3}


class Turn:
    """One turn's sink."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Any]] = []
        self._news = asyncio.Event()

    def __call__(self, kind: Mmm, data: Any) -> None:
        self.events.append((kind, data))
        self._news.set()

    @property
    def text(self) -> str:
        return "".join(data for kind, data in self.events if kind == Mmm.TEXT)

    @property
    def endings(self) -> list[tuple[int, Any]]:
        return [event for event in self.events if event[0] >= Mmm.FINISH]

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> tuple[int, Any]:
        await self.until(lambda: self.endings)
        return self.endings[0]


def held() -> list[str]:
    """What this process holds open of pipes and processes."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(("pipe:", "anon_inode:[pidfd]")):
            found.append(target)
    return sorted(found)


@asynccontextmanager
async def cell(folder: Path, raised: CellSpec, *, hatch: bool = True) -> AsyncIterator[Cell]:
    """A cell; at the end it is dead and has left neither processes nor descriptors nor tasks."""
    lifecycle.become_subreaper()
    before = held()
    it = Cell(raised, diagnose=failure.diagnosis)
    if hatch:
        await it.hatch()
    try:
        yield it
    finally:
        it.kill()
        if it.mark is not None:
            async with asyncio.timeout(WAIT):
                await it.emerged
    assert it.state in (CellState.DEAD, CellState.COLD)
    assert list(map(str, processes(folder))) == []
    for _ in range(8):  # transports report their ends a turn of the loop later
        await asyncio.sleep(0)
    assert held() == before
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert {task.get_name() for task in others} == set()


async def stream(it: Cell, **script: Any) -> Turn:
    """Feeds a turn that runs for long and waits for its first text."""
    turn = Turn()
    it.feed(chat(**{"tokens": 10_000, "rate": 50, **script}), turn)
    await turn.until(lambda: turn.text)
    return turn


async def test_a_cell_is_hatched_fed_and_silenced(short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir)) as it:
        assert str(it.state) == "hatching"
        async with asyncio.timeout(WAIT):
            await it.ready()
        assert it.is_ready
        assert it.facts["models"] == ["echo"]
        turn = Turn()
        it.feed(chat(tokens=4), turn)
        assert it.in_flight == 1
        kind, data = await turn.ended()
        assert (kind, data["reason"], turn.text) == (Mmm.FINISH, "stop", "w0 w1 w2 w3")
        assert it.in_flight == 0
        assert it.vitals is not None
        assert it.vitals.pid == it.facts["pid"]
        emerged = await it.silence(5.0, "enough")
        assert (emerged.code, emerged.asked, emerged.reason) == (0, True, "enough")
        assert emerged.left == ()
        assert it.state is CellState.DEAD


async def test_a_cancelled_turn_finishes_with_its_usage(short_dir: Path) -> None:
    heard: list[tuple[bool, float]] = []
    async with cell(short_dir, spec(short_dir)) as it:
        it._on_cancelled = lambda *told: heard.append(told)
        await it.ready()
        turn, other = Turn(), await stream(it)
        number = it.feed(chat(tokens=10_000, rate=100), turn)
        await turn.until(lambda: turn.text)
        it.cancel(number)
        it.cancel(number)
        kind, data = await turn.ended()
        assert (kind, data["reason"]) == (Mmm.FINISH, "cancelled")
        assert data["usage"]["output"] >= 1
        it.cancel(number)
        assert other.endings == []
        async with asyncio.timeout(WAIT):
            while not heard:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [confirmed for confirmed, _ in heard] == [True]


async def test_silence_is_idempotent_and_may_come_from_many(short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir, {"ignore_sigterm": True})) as it:
        await it.ready()
        first, *others = await asyncio.gather(
            it.silence(0.1, "first"), it.silence(3600, "second"), it.silence(3600, "third")
        )
        assert others == [first, first]
        assert (first.signal, first.reason) == (signal.SIGKILL, "first")
        assert await it.silence(0, "late") is first


async def test_a_cold_cell_is_silenced_without_ado(short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir), hatch=False) as it:
        emerged = await it.silence(5, "never wanted")
        assert emerged == Emerged(asked=True, reason="never wanted")
        with pytest.raises(StartFailed, match="never wanted"):
            await it.ready()


async def test_silence_while_it_hatches_does_not_wait_for_the_engine(short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir, WILD | {"hang_at": "load"})) as it:
        waiting = asyncio.ensure_future(it.ready())
        emerged = await it.silence(3600, "no longer wanted")
        assert emerged.asked
        with pytest.raises(StartFailed, match="no longer wanted"):
            await waiting


@pytest.mark.parametrize("turns", range(1, 4))
async def test_a_hatch_that_is_cancelled_leaves_nothing(turns: int, short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir), hatch=False) as it:
        hatching = asyncio.ensure_future(it.hatch())
        for _ in range(turns):
            await asyncio.sleep(0)
        hatching.cancel()
        await asyncio.wait({hatching})
        emerged = await it.silence(0, "gave up")
        assert emerged.asked


async def test_kill_needs_no_await_and_ends_every_turn_once(short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir, WILD)) as it:
        await it.ready()
        turns = [await stream(it) for _ in range(3)]
        it.kill()
        it.kill()
        assert (await it.emerged).asked
        for turn in turns:
            [(kind, data)] = turn.endings
            assert (kind, data["code"]) == (Mmm.ERROR, "cell_died")
            assert data["message"] == "cell echo-1 died (stopping): it was killed"


@pytest.mark.parametrize("confined", ["namespace", "guard"])
async def test_sigkill_of_the_tender_ends_each_turn_once_and_names_it(
    confined: str, short_dir: Path
) -> None:
    async with cell(short_dir, spec(short_dir, WILD, confine=confined)) as it:
        await it.ready()
        turns = [await stream(it) for _ in range(3)]
        tree = processes(short_dir)
        assert it.mark is not None
        os.kill(it.mark, signal.SIGKILL)
        async with asyncio.timeout(5):
            emerged = await it.emerged
        await all_end(tree)
        assert (emerged.asked, emerged.left) == (False, ())
        for turn in turns:
            [(kind, data)] = turn.endings
            assert (kind, data["code"]) == (Mmm.ERROR, "cell_died")
            assert data["message"].startswith(
                "cell echo-1 died (ready): its tender ended by signal 9; look for who ended it"
            )


@pytest.mark.parametrize("confined", ["namespace", "guard"])
async def test_sigkill_of_the_engine_ends_each_turn_once_and_names_it(
    confined: str, short_dir: Path
) -> None:
    async with cell(short_dir, spec(short_dir, {"children": 3}, confine=confined)) as it:
        await it.ready()
        turns = [await stream(it) for _ in range(3)]
        os.kill(it.facts["pid"], signal.SIGKILL)
        async with asyncio.timeout(5):
            emerged = await it.emerged
        assert (emerged.signal, emerged.asked, emerged.left) == (signal.SIGKILL, False, ())
        for turn in turns:
            [(kind, data)] = turn.endings
            assert (kind, data["code"]) == (Mmm.ERROR, "cell_died")
            assert "died (ready): the engine was killed by SIGKILL" in data["message"]
        late = Turn()
        it.feed(chat(), late)
        assert (await late.ended())[1]["code"] == "cell_died"


async def test_an_engine_core_that_dies_is_the_cells_death_at_once_and_named(
    short_dir: Path,
) -> None:
    raised = spec(short_dir, {"children": 2, "health_after_death": 60})
    async with cell(short_dir, raised) as it:
        await it.ready()
        turn = await stream(it)
        # By its arguments: it takes its name a little after its start, its worker has it in none.
        name = b"\0VLLM::EngineCor\x001\0"
        [core] = [
            stat
            for stat in processes(short_dir)
            if name in (proc.read_bytes(f"/proc/{stat.pid}/cmdline") or b"")
        ]
        os.kill(core.pid, signal.SIGKILL)
        kind, data = await turn.ended()
        assert kind == Mmm.ERROR
        assert data["code"] == "cell_died"
        assert f"VLLM::EngineCor (pid {core.pid}) was killed by SIGKILL" in data["message"]
        emerged = await it.emerged
        assert (emerged.signal, emerged.asked) == (signal.SIGKILL, False)
        assert (emerged.death, emerged.by) == (Death.KILLED, "SIGKILL")
        assert len(turn.endings) == 1


FAILED = {
    "missing_repo": "HFValidationError: Repo id must be in the form",
    "bad_config": "User-specified max_model_len (99999) is greater than the derived",
    "truncated_weights": "SafetensorError: Error while deserializing header: incomplete metadata",
    "kv_too_big": "To serve at least one request with the models's max seq len (2048)",
    "worker_killed": "a process of the engine died without a word while it started",
}


@pytest.mark.parametrize("name", FAILED)
async def test_a_failed_start_says_the_engines_one_useful_line(name: str, short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir, {"failure": name})) as it:
        with pytest.raises(StartFailed) as caught:
            await it.ready()
        assert caught.value.reason.startswith(FAILED[name])
        assert "\n" not in caught.value.reason
        assert len(caught.value.reason) <= 300
        emerged = await it.emerged
        assert (emerged.code, emerged.asked, emerged.reason) == (1, False, caught.value.reason)


async def test_a_wrong_flag_is_named(short_dir: Path) -> None:
    raised = spec(short_dir, {"long_usage": True})
    wrong = spec(short_dir, {"long_usage": True}, argv=[*raised.argv, "--bogus", "3"])
    async with cell(short_dir, wrong) as it:
        with pytest.raises(StartFailed, match="^unrecognized arguments: --bogus 3$"):
            await it.ready()


async def test_an_engine_that_leaves_without_a_word_has_at_least_its_code(short_dir: Path) -> None:
    code = "import os; os._exit(3)"
    async with cell(short_dir, spec(short_dir, argv=[sys.executable, "-c", code])) as it:
        it._diagnose = lambda lines: Diagnosis("")
        with pytest.raises(StartFailed, match="^the engine exited with code 3$"):
            await it.ready()


async def test_the_kernels_kill_for_memory_is_told_apart(short_dir: Path) -> None:
    limit = 100 << 20
    if confine.plan(confine.survey(), memory=limit).memory_watched:
        pytest.skip("no cgroup may limit memory here")
    hog = [sys.executable, "-c", "x = bytearray(300 << 20); import time; time.sleep(60)"]
    async with cell(short_dir, spec(short_dir, argv=hog, memory=limit)) as it:
        with pytest.raises(StartFailed, match=r"^killed by the kernel for memory"):
            await it.ready()
        assert it.emerged.result().death is Death.MEMORY
        assert "raise [limits] memory" in str(it.emerged.result())


async def test_a_tender_that_can_not_be_started_is_a_failed_start(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cell(short_dir, spec(short_dir), hatch=False) as it:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(StartFailed, match="the tender can't be started: .*No such file"):
            await it.hatch()
        with pytest.raises(StartFailed):
            await it.ready()
        assert it.emerged.done()
        assert await it.silence(1, "late") is it.emerged.result()


async def test_the_record_of_a_death_counts_the_turns_that_were_lost(short_dir: Path) -> None:
    async with cell(short_dir, spec(short_dir, {"children": 2})) as it:
        await it.ready()
        turns = [await stream(it) for _ in range(2)]
        os.kill(it.facts["pid"], signal.SIGKILL)
        record = (await it.emerged).record("echo-1", 1.0)
        assert (record.death, record.by, record.turns_lost) == (Death.KILLED, "SIGKILL", len(turns))
        assert record.age_seconds > 0
        assert record.peak_rss_bytes > 1 << 20
        assert record.advice
