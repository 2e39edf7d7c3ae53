"""Cancels with a real llama-server: its slot is free soon, whatever the turn was at."""

from __future__ import annotations

import asyncio
import time

import pytest

from hum_workers.fake_humd.asker import Asker
from hum_workers.llama_rpc_worker.signs import RUNNING
from tests.real_llama.conftest import Real
from tests.rig import ended

pytestmark = [
    pytest.mark.llama,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("llama"),
    pytest.mark.timeout(300),
]

LONG = "word " * 1500
"""Takes many seconds to be read."""


def _ask(asker: Asker, sid: str, text: str) -> asyncio.Task[object]:
    asker.prompt(
        sid=sid,
        modelId="smollm2",
        text=f"{time.monotonic()} {text}",
        sampling={"maxTokens": 1000, "ignoreEos": True, "temperature": 0},
    )
    return asyncio.ensure_future(asker.collect(sid, timeout=250))


async def _running(real: Real, count: int) -> None:
    async with asyncio.timeout(60):
        while True:
            if (await real.counts())[RUNNING] == count:
                return
            await asyncio.sleep(0.3)


async def test_a_turn_that_streams_is_gone_at_once(real: Real) -> None:
    await real.idle()
    async with await real.asker() as asker:
        turn = _ask(asker, "stream", "Tell a long story.")
        await _running(real, 1)
        asker.cancel("stream")
        answer = await turn
    assert ended(answer)["finishReason"] == "cancelled"  # type: ignore[arg-type]
    await real.idle(timeout=10)


async def test_a_prompt_that_is_being_read_is_let_go_after_its_batch(real: Real) -> None:
    before = await real.idle()
    async with await real.asker() as asker:
        turn = _ask(asker, "prefill", LONG)
        await _running(real, 1)
        asker.cancel("prefill")
        await turn
    after = await real.idle(timeout=20)
    assert after != before or before is not after
    assert real.bee.events("worker.cell.cancel_unconfirmed") == []


async def test_beside_a_running_stream_too(real: Real) -> None:
    await real.idle()
    async with await real.asker() as asker:
        stream = _ask(asker, "beside", "Tell a long story.")
        await _running(real, 1)
        turn = _ask(asker, "prefill-2", LONG)
        await _running(real, 2)
        asker.cancel("prefill-2")
        await turn
        async with asyncio.timeout(20):
            await _running(real, 1)
        assert not stream.done()
        asker.cancel("beside")
        await stream
    await real.idle(timeout=10)
    assert real.bee.events("worker.cell.cancel_unconfirmed") == []
