"""The nest of a slice: what becomes of it when its engine, or a look at its lease, fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hum_workers import lifecycle
from hum_workers.errors import EngineError
from hum_workers.llama_rpc_worker import slice_nest
from hum_workers.llama_rpc_worker.facts import Build, SliceState
from hum_workers.llama_rpc_worker.slice_desk import Desk, Terms
from hum_workers.llama_rpc_worker.slice_nest import SliceNest
from tests.llama_rpc_worker.test_route_nest import plan
from tests.test_nest import Scripted, until

BUILD = Build(commit="1-abc", digest="0" * 16, protocol=(0, 0, 0))
GONE = EngineError("[engine] bin: /x has no program llama-server")


class Raiser(Scripted):
    """Knows its build once it has made a spec, as the real one does."""

    build: Build | None = BUILD


class Wary(Desk):
    """Fails at each look."""

    looks = 0

    def look(self) -> None:
        self.looks += 1
        raise RuntimeError("a bug of ours")


def desk(kind: type[Desk] = Desk) -> Desk:
    return kind(
        hid="wbee_" + "c" * 64,
        name="slice",
        terms=Terms(memory=lambda devices: 1),
        changed=lambda: None,
        now=asyncio.get_running_loop().time,
    )


async def test_a_look_that_fails_is_not_the_last_one(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_nest, "LOOK", 0.005)
    wary = desk(Wary)
    assert isinstance(wary, Wary)
    it = SliceNest(plan(), Raiser(short_dir, GONE), desk=wary)
    it.start()
    async with asyncio.timeout(20):
        await until(lambda: wary.looks > 2)
    await it.stop(0, "the test is over")


async def test_without_an_engine_it_says_why_and_another_egg_starts_it(short_dir: Path) -> None:
    lifecycle.become_subreaper()
    it = SliceNest(plan(), Raiser(short_dir, GONE), desk=desk())
    it.start()
    try:
        async with asyncio.timeout(20):
            await until(lambda: it.failure)
            assert (it.failure, it.desk.book.state) == (str(GONE), SliceState.FAILED)
            assert it.desk.facts().holder is None
            assert it.desk.provides() == []
            there = Raiser(short_dir, {"hang_at": "load"})
            it.adopt(plan(), lambda lane: there, renew=True)
            await until(lambda: it.cell is not None and it.cell.mark)
            assert it.failure is None
            assert it.desk.book.state is SliceState.STARTING
            assert it.desk.facts().build == BUILD, "of the process, whatever the folder has by now"
            assert it.limits.stop_grace <= slice_nest.GRACE
    finally:
        await it.stop(0, "the test is over")
