"""The bee gets on with all that a real humd sent to a worker: every scene of the transcript."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.raw_humd import Seat, turns, under_raw_humd
from tests.rig import egg
from tests.transcripts import Scene, load

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("bee_transcripts"),
]

SCENES = load()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seat() -> AsyncIterator[Seat]:
    """One bee for all scenes: they come on one connection, as they would in a humd's life."""
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        models = 'models = ["m2", "lora1"]'
        async with under_raw_humd(folder, egg(folder, name="m1", bee=models)) as (_, _, seat):
            yield seat
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("scene", SCENES, ids=[scene.case for scene in SCENES])
async def test_the_bee_answers_each_prompt_once_and_ignores_the_rest(
    scene: Scene, seat: Seat
) -> None:
    """Provenance: transcripts of humd v0.31.18; `worker` is the bee."""
    heard = [step.tone for step in scene.steps if _is_for_the_bee(step.client, step.event)]
    tones = [tone for tone in heard if tone is not None]
    asked = Counter(tone["sid"] for tone in tones if tone["chi"] == "prompt")
    seat.tones.clear()
    seat.endings.clear()
    seat.say(*tones)
    await seat.until(lambda: all(seat.endings[sid] for sid in asked))

    # The tones of these two come behind all that the scene could still have brought.
    for sid in ("a good prompt", "another"):
        assert (await seat.answer(sid))["chi"] == "finish"
    assert seat.endings == asked + Counter(seat.endings.keys() - asked.keys())
    assert {sid for sid in seat.tones if sid} == {*asked, "a good prompt", "another"}
    assert {sid: len(turns(seat.tones[sid])) for sid in asked} == asked
    assert seat.refused == []


async def test_a_model_of_another_name_is_answered_by_the_same_engine(seat: Seat) -> None:
    for model in ("m1", "m2", "lora1"):
        assert (await seat.answer(f"as {model}", model))["chi"] == "finish"
    assert seat.hello["models"] == ["m1", "m2", "lora1"]


def _is_for_the_bee(client: str, event: str) -> bool:
    return client in ("worker", "twin") and event == "recv"
