"""No cell gets a device whose memory a dead one still holds: real tenders and the raiser of vLLM,
over an `nvidia-smi` that says what each test wants."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hum_workers import lifecycle
from hum_workers.cells.cell import Cell, CellState
from hum_workers.cells.custody import Custody
from hum_workers.cells.lasting import LastingNest
from hum_workers.cells.plan import NestPlan
from hum_workers.egg import load_eggs
from hum_workers.process import proc
from hum_workers.vllm_worker.egg import VllmEgg
from hum_workers.vllm_worker.raiser import VllmRaiser
from tests.gpus import Gpus, host
from tests.leftovers import processes
from tests.rig import WAIT, Bee, egg, ended, fake, served
from tests.tenders import chat
from tests.test_cell import Turn
from tests.test_nest import crash, limits, until

A, B = "GPU-aa", "GPU-bb"
BUSY, FREE = 40_000, 4
Log = list[MutableMapping[str, Any]]


@pytest.fixture
def logged() -> Iterator[Log]:
    with capture_logs() as entries:
        yield entries


def events(entries: Log, name: str) -> Log:
    return [entry for entry in entries if entry["event"] == name]


@asynccontextmanager
async def nest(
    folder: Path, custody: Custody, script: dict[str, Any] | None = None, extra: str = ""
) -> AsyncIterator[LastingNest]:
    """A nest of the scripted engine, raised again at once."""
    lifecycle.become_subreaper()
    [one] = load_eggs([egg(folder, fake=script, extra=extra)], VllmEgg)
    plan = NestPlan(
        name="echo",
        models=["echo"],
        limits=limits(),
        on_prompt=False,
        default_max_tokens=None,
        start_slot=asyncio.Semaphore(1),
        on_change=lambda: None,
        custody=custody,
        pauses=lambda: itertools.repeat(0.02),
    )
    raiser = VllmRaiser(one, private=folder / "c", log_file=None, inherited=os.environ)
    it = LastingNest(plan, raiser)
    it.start()
    try:
        async with asyncio.timeout(2 * WAIT):
            yield it
            await it.stop(1.0, "the test is over")
    finally:
        custody.hurry()
        it.kill()
        assert await it.buried(WAIT)
        custody.close()
    assert list(map(str, processes(folder / "c"))) == []


async def cell_of(it: LastingNest, number: int) -> Cell:
    """Returns the cell of this number when it is ready."""
    await until(lambda: it.cell is not None and it.cell.cell_id == f"echo-{number}")
    assert it.cell is not None
    await it.cell.ready()
    return it.cell


async def test_the_next_cell_waits_until_the_memory_of_the_dead_one_is_back(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, logged: Log
) -> None:
    gpus = host(monkeypatch, short_dir, A)
    async with nest(short_dir, Custody(poll=0.02)) as it:
        first = await cell_of(it, 1)
        assert first.spec.devices == [A]
        turn = Turn()
        first.feed(chat(tokens=100_000, rate=50), turn)
        pid = first.facts["pid"]
        gpus.use({A: BUSY}, (A, pid, BUSY - FREE))
        crash(first)
        await turn.ended()
        assert (first.fallen.done(), first.emerged.done()) == (True, False)
        assert (first.state, events(logged, "worker.cell.emerged")) == (CellState.STOPPING, [])
        following = it.lease()
        await asyncio.sleep(0.3)
        assert (it.cell, following.done()) == (first, False)
        gpus.use({A: FREE})
        (await following).release()
        assert it.cell is not None
        assert it.cell.spec.devices == [A]
        [line] = events(logged, "worker.cell.emerged")
        assert line["devices"][0].startswith(f"{A}: its memory is back after ")
    assert events(logged, "worker.device.set_aside") == []


async def test_a_device_whose_memory_stays_is_set_aside_and_taken_back_when_it_is_free(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, logged: Log
) -> None:
    gpus = host(monkeypatch, short_dir, A)
    custody = Custody(deadline=0.2, every=0.1, poll=0.02)
    async with nest(short_dir, custody) as it:
        first = await cell_of(it, 1)
        pid = first.facts["pid"]
        gpus.use({A: BUSY}, (A, pid, BUSY - FREE))
        crash(first)
        emerged = await first.emerged
        assert emerged.devices[0].startswith(f"{A}: set aside: 39996 MiB more are in use")
        [line] = events(logged, "worker.device.set_aside")
        assert (line["device"], line["cell"], line["log_level"]) == (A, "echo-1", "error")
        assert (line["pids"], line["memory_mib"]) == ([f"pid {pid} (ended)"], BUSY - FREE)
        assert "nvidia-smi --gpu-reset" in line["advice"]
        [view] = custody.views()
        assert (view.uuid, view.set_aside, view.cell) == (A, True, "echo-1")
        waiting = it.lease()
        await until(lambda: len(events(logged, "worker.cell.no_device")) > 1)
        [said, *_] = events(logged, "worker.cell.no_device")
        assert said["reason"].startswith(
            "no GPU for the cell (1 needed, 0 free): GPU-aa is set aside after cell echo-1 died: "
        )
        assert (it.advertised, it.failure, waiting.done()) == (True, None, False)
        gpus.use({A: FREE})
        (await waiting).release()
        [back] = events(logged, "worker.device.back")
        assert (back["device"], back["reason"]) == (A, "its memory is back")
        assert [one.set_aside for one in custody.views()] == [False]


async def test_with_one_device_set_aside_the_next_cell_gets_the_other(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, logged: Log
) -> None:
    gpus = host(monkeypatch, short_dir, A, B)
    async with nest(short_dir, Custody(deadline=0.1, poll=0.02)) as it:
        first = await cell_of(it, 1)
        assert first.spec.devices == [A]
        gpus.use({A: BUSY, B: FREE})
        crash(first)
        second = await cell_of(it, 2)
        assert second.spec.devices == [B]
        assert second.spec.env["CUDA_VISIBLE_DEVICES"] == B
        gpus.use({A: BUSY, B: BUSY}, (B, second.facts["pid"], BUSY - FREE))
        gpus.use({A: BUSY, B: FREE})
        crash(second)
        third = await cell_of(it, 3)
        assert third.spec.devices == [B]
    assert [line["device"] for line in events(logged, "worker.device.set_aside")] == [A]


async def test_an_egg_that_names_its_device_gets_no_other(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, logged: Log
) -> None:
    gpus = host(monkeypatch, short_dir, A, B)
    custody = Custody(deadline=0.1, poll=0.02)
    async with nest(short_dir, custody, extra="[placement]\ngpu = 0") as it:
        first = await cell_of(it, 1)
        gpus.use({A: BUSY, B: FREE})
        crash(first)
        await until(lambda: events(logged, "worker.cell.no_device"))
        [said, *_] = events(logged, "worker.cell.no_device")
        assert said["reason"].startswith("no GPU for the cell ([placement] gpu): GPU-aa is set")


async def test_a_cell_that_dies_while_it_starts_gives_its_device_back_by_proof_too(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, logged: Log
) -> None:
    gpus = host(monkeypatch, short_dir, A, B)
    async with nest(short_dir, Custody(deadline=0.1, poll=0.02), {"hang_at": "load"}) as it:
        await until(lambda: it.cell is not None and it.cell.vitals is not None)
        first = it.cell
        assert first is not None
        assert first.vitals is not None
        gpus.use({A: BUSY, B: FREE}, (A, first.vitals.pid, BUSY - FREE))
        os.kill(first.vitals.pid, 9)
        await until(lambda: it.cell is not first)
        assert first.emerged.done()
        [line] = events(logged, "worker.device.set_aside")
        assert line["pids"] == [f"pid {first.vitals.pid} (ended)"]
        assert it.cell is not None
        assert it.cell.spec.devices == [B]


async def test_a_driver_that_falls_silent_after_a_death_keeps_the_device(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, logged: Log
) -> None:
    gpus = host(monkeypatch, short_dir, A)
    async with nest(short_dir, Custody(deadline=0.1, every=0.05, poll=0.02)) as it:
        first = await cell_of(it, 1)
        gpus.silence(True)
        crash(first)
        await first.emerged
        [line] = events(logged, "worker.device.set_aside")
        assert line["reason"] == "nvidia-smi gives no answer for it"
        waiting = it.lease()
        await until(lambda: events(logged, "worker.cell.no_device"))
        gpus.silence(False)
        lease = await waiting
        assert lease.cell.spec.devices == [A], "and never the CPU instead"
        lease.release()


async def test_where_the_memory_can_not_be_read_nothing_waits(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, logged: Log
) -> None:
    gpus = host(monkeypatch, short_dir, A)
    gpus.use({})
    async with nest(short_dir, Custody()) as it:
        first = await cell_of(it, 1)
        assert first.spec.devices == [A]
        crash(first)
        await cell_of(it, 2)
        [line] = events(logged, "worker.cell.emerged")
        assert "devices" not in line


def living() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


async def test_a_process_of_an_earlier_bee_that_nothing_ends_keeps_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Log
) -> None:
    gpus = host(monkeypatch, tmp_path, A, B)
    custody = Custody(every=0.02)
    with living() as stays:
        stat = proc.read_stat(stays.pid)
        assert stat is not None
        gpus.use({A: BUSY, B: FREE}, (A, stays.pid, BUSY))
        await custody.inherit([stat])
        assert [(one.uuid, one.cell) for one in custody.views()] == [(A, "of an earlier bee")]
        stays.kill()
    gpus.use({A: FREE, B: FREE})
    await until(lambda: events(logged, "worker.device.back"))
    custody.close()


async def test_a_bee_that_stops_looks_but_waits_for_no_device(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = host(monkeypatch, short_dir, A)
    async with served(short_dir, egg(short_dir)) as (_, bee, asker):
        ended(await asker.ask(fake(tokens=2), "echo"))
        gpus.use({A: BUSY})
        assert await bee.stop() == 0
        assert [line["device"] for line in bee.events("worker.device.set_aside")] == [A]
        assert last_devices(bee)[0].startswith(f"{A}: set aside: ")


async def test_a_bee_says_of_each_death_that_the_memory_is_back(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host(monkeypatch, short_dir, A)
    async with served(short_dir, egg(short_dir)) as (_, bee, asker):
        os.kill(bee.events("worker.cell.ready")[0]["engine_pid"], 9)
        answer = await asker.ask(fake(tokens=2), "echo", timeout=WAIT)
        assert answer.complete
        await until(lambda: bee.events("worker.cell.emerged"))  # lines are written by a thread
        assert last_devices(bee)[0].startswith(f"{A}: its memory is back after ")


def last_devices(bee: Bee) -> list[str]:
    devices: list[str] = bee.events("worker.cell.emerged")[-1]["devices"]
    return devices


def test_the_stand_in_is_asked_as_a_host_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus: Gpus = host(monkeypatch, tmp_path, A)
    gpus.silence(True)
    done = subprocess.run(["nvidia-smi", "--query-gpu=uuid"], check=False, capture_output=True)
    assert done.returncode == 9
