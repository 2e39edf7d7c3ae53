"""What a real vLLM answers through fake humd, bee and tender."""

from __future__ import annotations

import asyncio
import json

import pytest

from hum_workers.fake_humd.asker import Answer
from tests.real.conftest import GENERATED, PROMPTED, RUNNING, WAITING, Real
from tests.rig import ended

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(400),
]


async def test_a_prompt_comes_back_with_text_usage_and_one_ending(real: Real) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask(
            "What is the capital of France?",
            "smollm2",
            sampling={"maxTokens": 40, "temperature": 0},
        )
    assert "Paris" in answer.text
    assert answer.complete
    assert ended(answer)["finishReason"] in ("stop", "length")
    assert ended(answer)["usage"]["output_tokens"] > 3


async def test_32_prompts_at_once_come_back_whole_with_the_engines_own_usage(real: Real) -> None:
    before = await real.idle()
    async with await real.asker() as asker:
        sids = [
            asker.prompt(
                sid=f"many-{i}",
                modelId="smollm2",
                text=f"Count from {i} to {i + 9}.",
                sampling={"maxTokens": 16 + i % 5, "temperature": 0},
            )
            for i in range(32)
        ]
        answers = await asyncio.gather(*(asker.collect(sid, timeout=120) for sid in sids))
    after = await real.idle()
    assert [ended(a)["chi"] for a in answers] == ["finish"] * 32
    assert all(a.complete for a in answers)
    assert _sum(answers, "output_tokens") == after[GENERATED] - before[GENERATED]
    cached = _sum(answers, "cache_read_input_tokens")
    assert _sum(answers, "input_tokens") + cached == after[PROMPTED] - before[PROMPTED]


async def test_cancel_reaches_the_engine_whether_a_turn_waits_prefills_or_streams(
    real: Real,
) -> None:
    await real.idle()
    async with await real.asker() as asker:
        sids = [
            asker.prompt(
                sid=f"cancel-{i}",
                modelId="smollm2",
                text="word " * 400 + str(i),
                sampling={"maxTokens": 100, "minTokens": 100, "temperature": 0},
            )
            for i in range(32)
        ]
        collected = [asyncio.ensure_future(asker.collect(sid, timeout=200)) for sid in sids]
        await _running_and_waiting(real)
        gone = [0, 1, 2, 3, 16, 17, 30, 31]
        for i in gone:
            asker.cancel(sids[i])
        cancelled = await asyncio.gather(*(collected[i] for i in gone))
        assert {ended(a).get("finishReason") for a in cancelled} == {"cancelled"}
        answers = await asyncio.gather(*collected)
    counts = await real.idle(timeout=10)
    assert (counts[RUNNING], counts[WAITING]) == (0, 0)
    finished = [a for i, a in enumerate(answers) if i not in gone]
    assert {ended(a)["chi"] for a in finished} == {"finish"}
    assert all(a.complete for a in answers)
    assert real.bee.events("worker.cell.cancel_unconfirmed") == []


async def test_a_json_schema_is_obeyed(real: Real) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    async with await real.asker() as asker:
        answer = await asker.ask(
            "Name a city as JSON.",
            "smollm2",
            sampling={
                "maxTokens": 60,
                "temperature": 0,
                "responseFormat": {"type": "json_schema", "schema": schema},
            },
        )
    assert isinstance(json.loads(answer.text)["city"], str)


async def test_more_tokens_than_the_context_holds_are_cut_not_refused(real: Real) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask(
            "Say hi.",
            "smollm2",
            timeout=200,
            sampling={"maxTokens": 1_000_000, "temperature": 0, "stop": ["!", "."]},
        )
    assert ended(answer)["chi"] == "finish"


async def test_a_prompt_longer_than_the_context_is_a_bad_prompt_that_says_so(real: Real) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask("word " * 5000, "smollm2")
    assert (ended(answer)["chi"], ended(answer)["code"]) == ("error", "bad_prompt")
    assert "2048" in ended(answer)["message"]


async def test_an_image_is_refused_and_the_next_prompt_is_answered(real: Real) -> None:
    async with await real.asker() as asker:
        refused = await asker.ask(
            "", "smollm2", content=[{"type": "image_url", "image_url": {"url": "data:,"}}]
        )
        assert ended(refused)["code"] == "bad_prompt"
        answer = await asker.ask("Hi", "smollm2", sampling={"maxTokens": 2})
    assert ended(answer)["chi"] == "finish"


async def _running_and_waiting(real: Real) -> None:
    """Returns when the engine runs what it can and holds more back."""
    async with asyncio.timeout(120):
        while True:
            counts = await real.counts()
            if counts[RUNNING] > 0 and counts[WAITING] > 0:
                return


def _sum(answers: list[Answer], key: str) -> int:
    return sum(ended(answer)["usage"].get(key, 0) for answer in answers)
