"""Deaths under turns: one that has sent text ends with an error, one that has not is asked again.

Scripted engines are killed by their tests; a restart takes a second of pause and a start.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from hum_workers.fake_humd import Asker
from tests.engine_view import EngineView
from tests.rig import WAIT, Bee, egg, ended, fake, served
from tests.test_ephemeral import ephemeral, until
from tests.tool_stage import calls, staged

MUTE = fake(tokens=3, prefill=1.5)
WHOLE = "w0 w1 w2"


def pid_of(bee: Bee, who: str) -> int:
    field = "engine_pid" if who == "engine" else "pid"
    return int(bee.events("worker.cell.ready")[-1][field])


async def speaks(asker: Asker, sid: str) -> None:
    async for tone in asker.stream(sid):
        if tone.get("chunkType") == "text_delta":
            return


@pytest.mark.parametrize("who", ["engine", "tender"])
async def test_a_turn_without_text_is_answered_whole_by_the_next_cell(
    short_dir: Path, who: str
) -> None:
    async with served(short_dir, egg(short_dir)) as (_, bee, asker):
        spoke = asker.prompt(modelId="echo", text=fake(tokens=1000, rate=50))
        await speaks(asker, spoke)
        mute = [asker.prompt(modelId="echo", text=MUTE) for _ in range(3)]
        await EngineView(short_dir).works_on(4)
        os.kill(pid_of(bee, who), signal.SIGKILL)
        cut = ended(await asker.collect(spoke, WAIT))
        assert cut["code"] == "cell_died"
        answers = await asyncio.gather(*(asker.collect(sid, WAIT) for sid in mute))
        for answer in answers:
            assert (answer.text, answer.complete) == (WHOLE, True)
            said = [t.get("kind") for t in answer.tones if t["chi"] in ("pulse", "session-ready")]
            assert said == [None, "cell-died", "cell-spawned", "cell-ready"]
        assert len(bee.events("worker.turn.repeated")) == 3
        assert [e["cell"] for e in bee.events("worker.cell.ready")] == ["echo-1", "echo-2"]


async def test_a_prompt_that_kills_every_engine_is_asked_twice_and_no_more(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (_, bee, asker):
        answer = await asker.ask(fake(die="before"), "echo", timeout=WAIT)
        assert ended(answer)["code"] == "cell_died"
        assert "echo-2" in ended(answer)["message"]
        assert (await asker.ask(fake(tokens=3), "echo", timeout=WAIT)).text == WHOLE
        assert len(bee.events("worker.cell.ready")) == 3


@pytest.mark.parametrize(
    ("limit", "code"),
    [('turn_timeout = "1s"', "turn_timeout"), ('wait_timeout = "1s"', "no_capacity")],
)
async def test_it_waits_within_its_deadlines(short_dir: Path, limit: str, code: str) -> None:
    path = egg(short_dir, extra=f"[limits]\n{limit}", fake={"ready_after": 1.0})
    async with served(short_dir, path) as (_, bee, asker):
        sid = asker.prompt(modelId="echo", text=fake(tokens=3, prefill=30))
        await EngineView(short_dir).works_on(1)
        os.kill(pid_of(bee, "engine"), signal.SIGKILL)
        error = ended(await asker.collect(sid, WAIT))
        assert error["code"] == code
        assert limit.split()[0] in error["message"]


async def test_a_cancel_while_it_waits_for_the_next_cell_ends_it_at_once(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (_, bee, asker):
        sid = asker.prompt(modelId="echo", text=MUTE)
        await EngineView(short_dir).works_on(1)
        os.kill(pid_of(bee, "engine"), signal.SIGKILL)
        await until(lambda: bool(bee.events("worker.turn.repeated")))
        asker.cancel(sid)
        assert ended(await asker.collect(sid, WAIT))["finishReason"] == "cancelled"
        assert len(bee.events("worker.cell.ready")) == 1


async def test_a_step_after_tools_is_asked_again_and_the_tools_are_not_run_again() -> None:
    async with staged() as stage:
        view = EngineView(stage.socket.parent)
        step = calls(("read", {"path": "a"}))
        sid = stage.prompt(step, {"quote": True, "prefill": 1.5})
        await stage.forager.called(1)
        await view.works_on(1)
        os.kill(pid_of(stage.bee, "engine"), signal.SIGKILL)
        answer = await stage.asker.collect(sid, WAIT)
        assert (answer.text, answer.complete) == ("heard read:a", True)
        assert len(stage.forager.calls) == 1


async def test_an_ephemeral_turn_without_text_gets_another_cell(short_dir: Path) -> None:
    async with served(short_dir, ephemeral(short_dir)) as (_, bee, asker):
        sid = asker.prompt(modelId="echo", text=MUTE)
        await until(lambda: bool(bee.events("worker.cell.ready")))
        await EngineView(short_dir).works_on(1)
        os.kill(pid_of(bee, "engine"), signal.SIGKILL)
        assert (await asker.collect(sid, WAIT)).text == WHOLE
        assert len(bee.events("worker.cell.ready")) == 2


async def test_in_a_drain_nothing_is_asked_again(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (humd, bee, asker):
        sid = asker.prompt(modelId="echo", text=fake(tokens=3, prefill=30))
        await EngineView(short_dir).works_on(1)
        stopping = asyncio.create_task(bee.stop())
        await humd.until(lambda: not humd.serves("echo"), WAIT)
        os.kill(pid_of(bee, "engine"), signal.SIGKILL)
        assert ended(await asker.collect(sid, WAIT))["code"] == "cell_died"
        assert await stopping == 0
