"""Pollen and a real text model: what it takes is learnt at its start, and the rest is refused."""

from __future__ import annotations

import base64

import pytest

from hum_workers.media.samples import SAMPLES
from tests.real.conftest import GENERATED, PROMPTED, Real
from tests.rig import ended

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(400),
]


async def test_a_text_model_was_asked_once_and_refused_all_kinds(real: Real) -> None:
    stages = [(e["stage"], e.get("detail", "")) for e in real.bee.events("worker.cell.stage")]
    asked = [(stage, detail) for stage, detail in stages if stage.startswith("media")]
    assert asked[0] == ("media: image", "")
    assert len(asked) == 2
    assert "is not a multimodal model" in asked[1][1]
    (ready,) = real.bee.events("worker.cell.ready")
    assert ready["media"] == []


@pytest.mark.parametrize(
    ("kind", "named"), [("image", "an image"), ("audio", "audio"), ("video", "a video")]
)
async def test_media_never_reaches_a_model_that_takes_text_only(
    real: Real, kind: str, named: str
) -> None:
    media_type, data = SAMPLES[kind]
    if kind == "video":
        media_type = "video/jpeg"
    attachment = {"kind": kind, "mediaType": media_type, "data": base64.b64encode(data).decode()}
    before = await real.idle()
    async with await real.asker() as asker:
        answer = await asker.ask("What is this?", "smollm2", attachments=[attachment])
    after = await real.idle()
    assert ended(answer)["code"] == "bad_prompt"
    assert ended(answer)["message"] == (
        f"the prompt has {named} (attachments[0]); smollm2 takes text only"
    )
    assert (after[GENERATED], after[PROMPTED]) == (before[GENERATED], before[PROMPTED])


async def test_text_in_parts_is_answered_as_before(real: Real) -> None:
    async with await real.asker() as asker:
        sid = asker.prompt(
            modelId="smollm2",
            content=[{"type": "text", "text": "Say hi."}],
            sampling={"maxTokens": 4, "temperature": 0},
        )
        answer = await asker.collect(sid, timeout=60)
    assert ended(answer)["chi"] == "finish"
    assert answer.complete
