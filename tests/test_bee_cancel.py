"""Cancel and cleanup at every moment of a turn, seen by the asker and by the engine's own gauges.

One bee serves the file; its engine runs one request, four more may wait inside it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from hum_workers.fake_humd import Answer, Asker
from tests.engine_view import RUNNING, WAITING, EngineView
from tests.rig import Bee, egg, fake, served

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("bee_cancel")]

ENDLESS = fake(tokens=1_000_000, rate=200)
SLOTS = 5


@dataclass(frozen=True)
class Stage:
    """What the tests share."""

    bee: Bee
    asker: Asker
    engine: EngineView

    def prompt(self, text: str, sid: str | None = None) -> str:
        """Sends a prompt and returns its sid."""
        return self.asker.prompt(sid=sid, modelId="echo", text=text)

    async def speaks(self, sid: str) -> None:
        """Returns when the first text of the turn has come; it is taken from the answer."""
        async for tone in self.asker.stream(sid):
            if tone.get("chunkType") == "text_delta":
                return

    async def good(self) -> None:
        """Asks a good prompt: the engine serves others as before."""
        answer = await self.asker.ask(fake(tokens=3), "echo")
        assert answer.text == "w0 w1 w2"
        assert answer.complete


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        one = egg(folder, extra="[batching]\nmax_num_seqs = 1")
        async with served(folder, one) as (_, bee, asker):
            yield Stage(bee, asker, EngineView(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cancelled(answer: Answer) -> bool:
    """Whether the answer ended as a cancelled one does."""
    ending = answer.ending
    return ending is not None and ending.get("finishReason") == "cancelled"


@pytest.mark.parametrize("how", ["cancel", "cleanup"])
async def test_a_running_turn_ends_in_the_engine_too_and_brings_its_usage(
    stage: Stage, how: str
) -> None:
    sid = stage.prompt(ENDLESS)
    await stage.speaks(sid)
    stage.asker.send({"chi": how, "sid": sid})
    answer = await stage.asker.collect(sid)
    assert cancelled(answer)
    assert answer.ending is not None
    usage = answer.ending["usage"]
    assert usage["input_tokens"] == 4 + len(ENDLESS.split())
    assert 0 < usage["output_tokens"] < 1_000_000
    await stage.engine.works_on(0)
    await stage.good()


async def test_what_waits_in_the_line_of_a_sid_ends_with_the_turn_that_runs(stage: Stage) -> None:
    sid = stage.prompt(ENDLESS)
    for _ in range(3):
        stage.prompt(ENDLESS, sid)
    await stage.speaks(sid)
    stage.asker.cancel(sid)
    answers = [await stage.asker.collect(sid) for _ in range(4)]
    assert all(map(cancelled, answers))
    assert [len(answer.tones) for answer in answers[1:]] == [1, 1, 1]
    assert (await stage.engine.works_on(0))[WAITING] == 0
    stage.prompt(fake(tokens=2), sid)
    assert (await stage.asker.collect(sid)).text == "w0 w1"


async def test_a_turn_that_waits_for_a_slot_ends_at_once_and_no_other_is_touched(
    stage: Stage,
) -> None:
    held = [stage.prompt(ENDLESS) for _ in range(SLOTS)]
    await stage.engine.works_on(SLOTS)
    waits = stage.prompt(ENDLESS)
    stage.asker.cancel(waits)
    answer = await stage.asker.collect(waits)
    assert cancelled(answer)
    assert answer.tones == [answer.ending]
    assert answer.ending is not None
    assert answer.ending["usage"] == {"input_tokens": 0, "output_tokens": 0}
    counts = await stage.engine.counts()
    assert (counts[RUNNING], counts[WAITING]) == (1, SLOTS - 1)
    for sid in held:
        stage.asker.cancel(sid)
    assert all([cancelled(await stage.asker.collect(sid)) for sid in held])
    await stage.engine.works_on(0)
    await stage.good()


async def test_a_turn_that_waits_in_the_engine_leaves_it(stage: Stage) -> None:
    runs = stage.prompt(ENDLESS)
    await stage.speaks(runs)
    waits = stage.prompt(ENDLESS)
    await stage.engine.works_on(2)
    stage.asker.cancel(waits)
    assert cancelled(await stage.asker.collect(waits))
    assert (await stage.engine.works_on(1))[RUNNING] == 1
    stage.asker.cancel(runs)
    assert cancelled(await stage.asker.collect(runs))


async def test_a_turn_that_is_prefilled_ends_before_its_first_word(stage: Stage) -> None:
    sid = stage.prompt(fake(tokens=5, prefill=600))
    await stage.engine.works_on(1)
    stage.asker.cancel(sid)
    answer = await stage.asker.collect(sid)
    assert cancelled(answer)
    assert [tone["chi"] for tone in answer.tones] == ["session-ready", "finish"]
    await stage.engine.works_on(0)


async def test_a_cancel_right_behind_its_prompt_ends_it(stage: Stage) -> None:
    sid = stage.prompt(ENDLESS)
    stage.asker.cancel(sid)
    assert cancelled(await stage.asker.collect(sid))
    await stage.engine.works_on(0)


async def test_a_cancel_of_a_sid_that_nobody_knows_says_nothing(stage: Stage) -> None:
    heard, logged = stage.asker.received, len(stage.bee.log())
    for chi in ("cancel", "cleanup"):
        stage.asker.send({"chi": chi, "sid": "nobody"})
    answer = await stage.asker.ask(fake(tokens=1), "echo")
    assert stage.asker.received - heard == len(answer.tones)
    assert len(stage.bee.log()) == logged


async def test_a_second_cancel_changes_nothing(stage: Stage) -> None:
    sid = stage.prompt(ENDLESS)
    await stage.speaks(sid)
    for _ in range(3):
        stage.asker.cancel(sid)
    assert cancelled(await stage.asker.collect(sid))
    stage.asker.cancel(sid)
    stage.prompt(fake(tokens=2), sid)
    answer = await stage.asker.collect(sid)
    assert (answer.text, cancelled(answer)) == ("w0 w1", False)


async def test_a_cancel_that_meets_the_end_of_an_answer_leaves_one_ending(stage: Stage) -> None:
    async def race(tokens: int) -> Answer:
        sid = stage.prompt(fake(tokens=tokens, rate=2000))
        async for tone in stage.asker.stream(sid):
            if tone.get("chunkType") == "text_delta":
                break
        stage.asker.cancel(sid)
        answer = await stage.asker.collect(sid)
        stage.prompt(fake(tokens=1), sid)
        assert (await stage.asker.collect(sid)).text == "w0"
        return answer

    # With up to 30 tokens the end comes before, with, and after the cancel.
    answers = [await race(tokens) for tokens in range(1, 31)]
    reasons = {answer.ending["finishReason"] for answer in answers if answer.ending}
    assert reasons <= {"stop", "cancelled"}
    await stage.engine.works_on(0)


async def test_every_cancel_was_confirmed_by_the_engine(stage: Stage) -> None:
    """Last of the file: the bee says so when one was not."""
    await asyncio.sleep(0)
    assert stage.bee.events("worker.cell.cancel_unconfirmed") == []
