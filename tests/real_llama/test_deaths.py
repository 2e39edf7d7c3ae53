"""A real llama-server that is killed: each turn ends once, and the cell comes back by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from hum_workers.fake_humd.asker import Asker, spoken
from hum_workers.llama_rpc_worker.signs import RUNNING
from tests.real_llama.conftest import START, Real
from tests.rig import ended

pytestmark = [
    pytest.mark.llama,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("llama"),
    pytest.mark.timeout(300),
]


async def test_a_kill_in_mid_stream_gives_each_turn_one_error_and_the_next_is_answered(
    real: Real,
) -> None:
    await real.idle()
    cells = real.cells()
    engine = real.bee.events("worker.cell.ready")[-1]["engine_pid"]
    async with await real.asker() as asker:
        for name in ("one", "two"):
            asker.prompt(
                sid=f"killed-{name}",
                modelId="smollm2",
                text=f"Tell a long story of {name}.",
                sampling={"maxTokens": 1000, "ignoreEos": True},
            )
        begun = {name: asyncio.Event() for name in ("one", "two")}
        turns = [
            asyncio.ensure_future(_followed(asker, f"killed-{name}", event))
            for name, event in begun.items()
        ]
        async with asyncio.timeout(100):
            await asyncio.gather(*(event.wait() for event in begun.values()))
            os.kill(engine, signal.SIGKILL)
            endings = await asyncio.gather(*turns)
    assert [ending["code"] for ending in endings] == ["cell_died"] * 2
    async with await real.asker() as asker:
        answer = await asker.ask("Hi", "smollm2", timeout=START, sampling={"maxTokens": 2})
    assert ended(answer)["chi"] == "finish"
    assert real.cells() == cells + 1
    (emerged,) = [e for e in real.bee.events("worker.cell.emerged") if e.get("signal") == 9]
    assert emerged["death"] == "killed"


async def _followed(asker: Asker, sid: str, begun: asyncio.Event) -> dict[str, Any]:
    """Returns the ending of a turn; sets `begun` with its first text."""
    last: dict[str, Any] = {}
    async for tone in asker.stream(sid):
        last = tone
        if spoken(tone)[1]:
            begun.set()
    return last


async def test_a_prompt_that_no_text_came_of_is_asked_again(real: Real) -> None:
    await real.idle()
    engine = real.bee.events("worker.cell.ready")[-1]["engine_pid"]
    async with await real.asker() as asker:
        asker.prompt(
            sid="again",
            modelId="smollm2",
            text="word " * 300,
            sampling={"maxTokens": 2, "temperature": 0},
        )
        turn = asyncio.ensure_future(asker.collect("again", timeout=250))
        async with asyncio.timeout(100):
            while True:
                if (await real.counts())[RUNNING] == 1:
                    break
                await asyncio.sleep(0.1)
        os.kill(engine, signal.SIGKILL)
        answer = await turn
    assert ended(answer)["chi"] == "finish"
    assert len(real.bee.events("worker.turn.repeated")) == 1
