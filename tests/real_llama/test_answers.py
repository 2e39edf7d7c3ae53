"""What a real llama-server answers through fake humd, bee and tender."""

from __future__ import annotations

import asyncio
import json

import pytest

from hum_workers.fake_humd.asker import Answer
from hum_workers.llama_rpc_worker.signs import RUNNING, WAITING
from tests.real_llama.conftest import CACHED, GENERATED, PROMPTED, Real
from tests.rig import ended

pytestmark = [
    pytest.mark.llama,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("llama"),
    pytest.mark.timeout(300),
]


async def test_a_prompt_comes_back_with_text_usage_and_one_ending(real: Real) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask(
            "What is the capital of France?",
            "smollm2",
            timeout=120,
            sampling={"maxTokens": 20, "temperature": 0},
        )
    assert answer.text.strip()
    assert answer.complete
    assert ended(answer)["finishReason"] in ("stop", "length")
    assert ended(answer)["usage"]["output_tokens"] > 3


async def test_prompts_at_once_come_back_whole_with_the_engines_own_usage(real: Real) -> None:
    before = await real.idle()
    async with await real.asker() as asker:
        sids = [
            asker.prompt(
                sid=f"many-{i}",
                modelId="smollm2",
                text=f"Count from {i} to {i + 9}.",
                sampling={"maxTokens": 4 + i % 3, "temperature": 0},
            )
            for i in range(6)
        ]
        answers = await asyncio.gather(*(asker.collect(sid, timeout=200) for sid in sids))
    after = await real.idle()
    assert [ended(a)["chi"] for a in answers] == ["finish"] * 6
    assert all(a.complete for a in answers)
    assert _sum(answers, "output_tokens") == after[GENERATED] - before[GENERATED]
    assert _sum(answers, "input_tokens") == after[PROMPTED] - before[PROMPTED]
    assert _sum(answers, "cache_read_input_tokens") == after[CACHED] - before[CACHED]


async def test_never_more_turns_than_parallel_are_in_the_engine(real: Real) -> None:
    await real.idle()
    async with await real.asker() as asker:
        sids = [
            asker.prompt(
                sid=f"queue-{i}",
                modelId="smollm2",
                text=f"Tell a story about {i} bees.",
                sampling={"maxTokens": 12, "ignoreEos": True},
            )
            for i in range(5)
        ]
        collected = [asyncio.ensure_future(asker.collect(sid, timeout=200)) for sid in sids]
        seen = []
        while not all(task.done() for task in collected):
            seen.append(await real.counts())
    assert max(counts[RUNNING] for counts in seen) <= 2
    assert max(counts[WAITING] for counts in seen) == 0
    assert {ended(task.result())["chi"] for task in collected} == {"finish"}


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
            timeout=120,
            sampling={
                "maxTokens": 60,
                "temperature": 0,
                "responseFormat": {"type": "json_schema", "schema": schema},
            },
        )
    assert isinstance(json.loads(answer.text)["city"], str)


async def test_sampling_that_only_other_engines_know_does_no_harm(real: Real) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask(
            "Say hi.",
            "smollm2",
            timeout=120,
            sampling={
                "maxTokens": 4,
                "minTokens": 1,
                "topK": -1,
                "minP": 0.1,
                "topP": 0.9,
                "seed": 7,
                "stop": ["x1", "x2"],
                "stopTokenIds": [1],
                "badWords": ["never"],
                "repetitionPenalty": 1.1,
                "frequencyPenalty": 0.1,
                "presencePenalty": 0.1,
                "logitBias": {"17": -5},
                "thinkingTokenBudget": 8,
                "includeReasoning": True,
                "chatTemplateKwargs": {"enable_thinking": False},
            },
        )
    assert ended(answer)["chi"] == "finish"


async def test_a_length_of_one_token_is_kept(real: Real) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask("Count.", "smollm2", timeout=60, sampling={"maxTokens": 1})
    assert ended(answer)["usage"]["output_tokens"] == 1


async def test_more_tokens_than_the_context_holds_are_cut_not_refused(real: Real) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask(
            "Say hi.",
            "smollm2",
            timeout=200,
            sampling={"maxTokens": 1_000_000, "temperature": 0, "stop": ["!", ".", ","]},
        )
    assert ended(answer)["chi"] == "finish"


async def test_a_prompt_longer_than_the_context_is_a_bad_prompt_that_says_so(real: Real) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask("word " * 5000, "smollm2", timeout=60)
    assert (ended(answer)["chi"], ended(answer)["code"]) == ("error", "bad_prompt")
    assert "2048" in ended(answer)["message"]


async def test_an_image_is_refused_and_the_next_prompt_is_answered(real: Real) -> None:
    async with await real.asker() as asker:
        refused = await asker.ask(
            "", "smollm2", content=[{"type": "image_url", "image_url": {"url": "data:,"}}]
        )
        assert ended(refused)["code"] == "bad_prompt"
        answer = await asker.ask("Hi", "smollm2", timeout=60, sampling={"maxTokens": 2})
    assert ended(answer)["chi"] == "finish"


async def test_roles_and_parts_of_a_conversation_reach_the_model(real: Real) -> None:
    messages = [
        {"role": "developer", "content": "Answer in one word."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "My cat is"}, {"text": " called Mo."}],
        },
        {"role": "assistant", "content": "Mo."},
        {"role": "user", "content": "What is my cat called?"},
    ]
    async with await real.asker() as asker:
        answer = await asker.ask(
            "",
            "smollm2",
            timeout=60,
            messages=messages,
            systemPrompt="You are brief.",
            sampling={"maxTokens": 12, "temperature": 0},
        )
    assert ended(answer)["chi"] == "finish"
    assert "Mo" in answer.text


def _sum(answers: list[Answer], key: str) -> int:
    return sum(ended(answer)["usage"].get(key, 0) for answer in answers)
