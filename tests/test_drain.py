"""An orderly stop with something in its way: it ends in time, and every turn has its ending."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hum_workers.fake_humd import Asker, FakeHumd
from hum_workers.program import stop_times
from tests.engine_view import EngineView
from tests.forager import Forager, nothing
from tests.leftovers import assert_nothing_left, processes
from tests.rig import WAIT, egg, ended, fake, running_bee, served
from tests.test_ephemeral import ephemeral, until
from tests.tool_stage import PARSER, calls, script

ENDLESS = fake(tokens=1_000_000, rate=100)
SHORT = '[lifecycle]\ndrain_timeout = "300ms"\nstop_grace = "1s"'


@pytest.mark.parametrize(
    ("drain", "grace", "expected"),
    [
        (30.0, 15.0, (30.0, 15.0)),
        (0.0, 0.0, (0.0, 0.0)),
        (300.0, 15.0, (49.0, 15.0)),
        (30.0, 3600.0, (0.0, 64.0)),
    ],
)
def test_a_stop_is_shared_out_below_90_seconds(
    drain: float, grace: float, expected: tuple[float, float]
) -> None:
    assert stop_times.shares(drain, grace) == expected
    assert sum(expected) + 2 * stop_times.WORDS + stop_times.KILL <= stop_times.TOTAL < 90


async def speaks(asker: Asker, sid: str) -> None:
    async for tone in asker.stream(sid):
        if tone.get("chunkType") == "text_delta":
            return


@asynccontextmanager
async def timed(most: float) -> AsyncIterator[None]:
    """Fails when the block takes longer; a hang of the stop is 15 s or more."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    yield
    assert loop.time() - began < most


async def test_while_humd_is_away(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir, extra=SHORT)) as (humd, bee, asker):
        sid = asker.prompt(modelId="echo", text=ENDLESS)
        await speaks(asker, sid)
        humd.kill()
        async with timed(12):
            assert await bee.stop() == 0
    assert_nothing_left(short_dir)


async def test_while_an_asker_reads_nothing(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir, extra=SHORT)) as (_, bee, asker):
        sid = asker.prompt(modelId="echo", text=fake(tokens=1_000_000, rate=2000))
        await speaks(asker, sid)
        asker.pause_reading()
        async with timed(14):
            assert await bee.stop() == 0
        asker.resume_reading()
        assert ended(await asker.collect(sid, WAIT))["code"] == "shutting_down"
    assert_nothing_left(short_dir)


async def test_while_humd_reads_nothing_for_a_while(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir, extra=SHORT)) as (humd, bee, asker):
        sid = asker.prompt(modelId="echo", text=fake(tokens=1_000_000, rate=2000))
        await speaks(asker, sid)
        humd.stall()
        stop = asyncio.ensure_future(bee.stop())
        await until(lambda: bool(bee.events("worker.drain.timeout")))
        humd.resume()
        assert ended(await asker.collect(sid, WAIT))["code"] == "shutting_down"
        assert await stop == 0
    assert_nothing_left(short_dir)


async def test_while_humd_reads_nothing_at_all_the_next_bee_says_the_ending(
    short_dir: Path,
) -> None:
    path = egg(short_dir, extra=SHORT)
    async with served(short_dir, path) as (humd, bee, asker):
        sid = asker.prompt(modelId="echo", text=fake(tokens=1_000_000, rate=2000))
        await speaks(asker, sid)
        humd.stall()  # the socket is full in a moment, and no ending gets in
        async with timed(14):
            assert await bee.stop() == 0
        humd.resume()
        async with running_bee(short_dir, path):
            ending = ended(await asker.collect(sid, WAIT))
            assert ending["code"] in ("shutting_down", "bee_restarted")
    assert_nothing_left(short_dir)


async def test_a_call_that_no_forager_answers(short_dir: Path) -> None:
    path = egg(short_dir, model=PARSER, extra=SHORT)
    async with served(short_dir, path) as (humd, bee, asker):
        async with await Forager.lend(humd.socket, "read") as forager:
            forager.answers = nothing
            step = calls(("read", {"path": "a"}))
            sid = asker.prompt(modelId="echo", text=script(step, {"quote": True}))
            await forager.called(1)
            async with timed(12):
                assert await bee.stop() == 0
            assert ended(await asker.collect(sid, WAIT))["code"] == "shutting_down"
    assert_nothing_left(short_dir)


async def test_a_cell_that_hatches_with_prompts_behind_it(short_dir: Path) -> None:
    stuck = {"hang_at": "load", "ignore_sigterm": True, "double_fork": True}
    path = egg(short_dir, bee='raise = "on-prompt"', extra=SHORT, fake=stuck)
    async with served(short_dir, path) as (_, bee, asker):
        sids = [asker.prompt(modelId="echo", text="hi") for _ in range(3)]
        await until(lambda: len(bee.events("worker.cell.stage")) > 1)
        async with timed(12):
            assert await bee.stop() == 0
        endings = [ended(await asker.collect(sid, WAIT)) for sid in sids]
        assert {ending["code"] for ending in endings} == {"shutting_down"}
    assert_nothing_left(short_dir)


async def test_a_cell_that_hatches_is_still_used_by_the_prompts_that_wait(short_dir: Path) -> None:
    path = egg(short_dir, bee='raise = "on-prompt"', fake={"ready_after": 1.0})
    async with served(short_dir, path) as (_, bee, asker):
        sid = asker.prompt(modelId="echo", text=fake(tokens=3))
        await until(lambda: bool(bee.events("worker.cell.spawned")))
        assert await bee.stop() == 0
        assert (await asker.collect(sid, WAIT)).text == "w0 w1 w2"


async def test_an_interpreter_that_hangs_when_it_is_asked_for_its_engine(short_dir: Path) -> None:
    python = short_dir / "python"
    python.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    python.chmod(0o755)
    path = egg(short_dir, bee='raise = "on-prompt"', extra=SHORT)
    path.write_text(path.read_text().replace(json.dumps(sys.executable), json.dumps(str(python))))
    async with served(short_dir, path) as (_, bee, asker):
        sid = asker.prompt(modelId="echo", text="hi")
        await until(lambda: bool(processes(python)))
        async with timed(12):
            assert await bee.stop() == 0
        assert ended(await asker.collect(sid, WAIT))["code"] == "shutting_down"
        assert processes(python) == []


async def test_an_ephemeral_bee_with_turns_in_each_state(short_dir: Path) -> None:
    path = ephemeral(short_dir, more="max_procs = 2", extra=SHORT)
    async with served(short_dir, path) as (_, bee, asker):
        running = [asker.prompt(modelId="echo", text=ENDLESS) for _ in range(2)]
        for sid in running:
            await speaks(asker, sid)
        waiting = [asker.prompt(modelId="echo", text="hi") for _ in range(3)]
        waiting += [asker.prompt(sid=running[0], modelId="echo", text="behind")]
        async with timed(14):
            assert await bee.stop() == 0
        answers = [await asker.collect(sid, WAIT) for sid in [*running, *waiting]]
        assert {ended(answer)["code"] for answer in answers} == {"shutting_down"}
    assert_nothing_left(short_dir)


async def test_several_cells_that_ignore_sigterm_stop_side_by_side(short_dir: Path) -> None:
    names = ("a", "b", "c")
    stubborn = {"ignore_sigterm": True, "children": 1}
    extra = '[lifecycle]\nstop_grace = "2s"'
    eggs = [egg(short_dir, name=name, extra=extra, fake=stubborn) for name in names]
    async with served(short_dir, *eggs, model="c") as (humd, bee, _):
        await humd.until(lambda: all(humd.serves(name) for name in names), WAIT)
        async with timed(12):
            assert await bee.stop() == 0
    assert_nothing_left(short_dir)


async def test_with_endings_of_an_earlier_bee_that_nobody_echoes(short_dir: Path) -> None:
    path = egg(short_dir, bee='raise = "on-prompt"')
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
        async with running_bee(short_dir, path) as bee:
            await humd.until(lambda: humd.serves("echo"), WAIT)
            async with await Asker.connect(humd.socket) as asker:
                asker.prompt(modelId="echo", text=ENDLESS)
                await until(lambda: bool(bee.events("worker.cell.ready")))
                await EngineView(short_dir).works_on(1)
                await bee.stop(9)
        humd.kill()
        async with running_bee(short_dir, path) as bee:
            await until(lambda: bool(bee.events("worker.journal.owed")))
            async with timed(12):
                assert await bee.stop() == 0
    assert_nothing_left(short_dir)
