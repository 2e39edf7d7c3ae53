"""Prompts through fake humd, bee, tender and scripted engine: forms, refusals, order, dialects.

One bee serves the file: egg `echo` answers with the request it got, egg `narrow` runs one request.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hum_workers.fake_humd import Answer, Asker, FakeHumd
from hum_workers.fake_humd.wire import Tone, encode
from tests.rig import Bee, egg, fake, served

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("bee_prompts")]

NARROW = """[batching]
max_num_seqs = 1
[limits]
max_waiting = 2
max_waiting_per_sid = 2
"""
SLOTS = 5
"""Turns inside the engine of `narrow`: one runs, four wait there."""


@dataclass(frozen=True)
class Stage:
    """What the tests share."""

    humd: FakeHumd
    bee: Bee
    asker: Asker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        models = 'models = ["sonnet"]'  # humd gives a prompt without a model to it
        echo = egg(folder, fake={"request": {"echo": True}}, bee=models)
        narrow = egg(folder, name="narrow", extra=NARROW)
        async with served(folder, echo, narrow, model="narrow") as (humd, bee, asker):
            await humd.until(lambda: humd.serves("echo"))
            yield Stage(humd, bee, asker)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def asked(stage: Stage, **fields: Any) -> dict[str, Any]:
    """Sends a prompt and returns the chat request that reached the engine."""
    sid = stage.asker.prompt(**{"modelId": "echo", **fields})
    answer = await stage.asker.collect(sid)
    assert answer.complete, answer.ending
    request: dict[str, Any] = json.loads(answer.text)
    return request


async def error(stage: Stage, **fields: Any) -> Tone:
    """Sends a prompt that is refused and returns its error, the only tone it gets."""
    sid = stage.asker.prompt(**{"modelId": "echo", "text": "hi", **fields})
    answer = await stage.asker.collect(sid)
    (refused,) = answer.tones
    assert refused["chi"] == "error"
    assert refused["code"] == refused["subtype"]
    assert "\n" not in refused["message"]
    return refused


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
PDF = "application/pdf"
SYSTEM = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"content": "hi"}, user("hi")),
        ({"text": "hi"}, user("hi")),
        ({"content": "this", "text": "not this"}, user("this")),
        ({"content": "", "text": "this"}, user("this")),
        ({"content": PARTS}, user(PARTS)),
        ({"content": PARTS[:1]}, user("a")),
        ({"content": "User: hi\n\nAssistant: yo"}, user("User: hi\n\nAssistant: yo")),
        ({"content": "hi", "systemPrompt": "be brief"}, [SYSTEM, *user("hi")]),
        ({"messages": [SYSTEM, *user("hi")], "content": "not this"}, [SYSTEM, *user("hi")]),
        ({"text": "naïve 日本 😀 \u0000"}, user("naïve 日本 😀 \u0000")),
    ],
)
async def test_a_text_prompt_of_any_form_reaches_the_engine(
    stage: Stage, fields: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    assert (await asked(stage, **fields))["messages"] == messages


async def test_a_prompt_without_a_model_goes_to_the_first_egg(stage: Stage) -> None:
    sid = stage.asker.prompt(text="hi")
    answer = await stage.asker.collect(sid)
    assert answer.complete
    assert answer.tones[0]["chi"] == "session-ready"
    assert answer.tones[0]["model"] == "echo"
    assert answer.tones[0]["nestId"] == "echo-1"


async def test_an_empty_model_is_none(stage: Stage) -> None:
    """humd of this release refuses one itself; others pass it on."""
    answer = await straight(stage, modelId="", content="hi")
    assert answer.complete
    assert answer.tones[0]["model"] == "echo"


async def test_a_model_that_is_not_here_is_refused_by_name(stage: Stage) -> None:
    answer = await straight(stage, modelId="gpt\n5", content="hi")
    assert answer.ending is not None
    assert answer.ending["code"] == "bad_prompt"
    assert answer.ending["message"] == "no model 'gpt 5' here; this bee has echo, sonnet, narrow"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{"name": "look_up"}]}, "look_up"),
        ({"tools": [{"name": "two\nlines"}]}, "two lines"),
        ({"tools": [{"type": "function", "function": {"name": "look_up"}}]}, "tool_call_parser"),
        ({"attachments": [{"kind": "pdf", "mediaType": PDF, "data": "AA=="}]}, "is a PDF"),
        ({"attachments": [{"kind": "image", "data": "AA=="}]}, "no media type"),
        ({"content": [{"type": "hologram"}]}, "'hologram'"),
        ({"text": ""}, "no text"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature must be a number"),
        ({"sampling": {"temperature": 3}}, "sampling.temperature is 3"),
        ({"sampling": {"maxTokens": 0}}, "sampling.maxTokens"),
        ({"sampling": {"n": 2}}, "sampling.n is 2"),
        ({"sampling": {"logprobs": True}}, "sampling.logprobs is not done"),
        ({"sampling": {"responseFormat": {"type": "grammar"}}}, "sampling.responseFormat"),
        ({"sampling": []}, "sampling must be an object"),
        ({"systemPrompt": 7}, "systemPrompt must be a string"),
        ({"messages": "hi"}, "messages must be a list"),
    ],
)
async def test_what_can_not_be_done_is_refused_by_name(
    stage: Stage, fields: dict[str, Any], message: str
) -> None:
    refused = await error(stage, **fields)
    assert refused["code"] == "bad_prompt"
    assert message in refused["message"]


async def test_an_image_is_refused_by_a_model_that_takes_text(stage: Stage) -> None:
    image = {"kind": "image", "mediaType": "image/png", "data": "iVBORw0KGgo="}
    answer = await stage.asker.ask("what is this?", "echo", attachments=[image])
    assert answer.ending is not None
    assert answer.ending["code"] == "bad_prompt"
    assert "echo takes text only" in answer.ending["message"]


async def test_tools_of_foragers_and_forbidden_tools_are_left_out(stage: Stage) -> None:
    request = await asked(
        stage,
        text="hi",
        foragerTools=[{"name": "humfs_read", "inputSchema": {}}],
        tools=[{"name": "Bash"}, "plain string", {}],
        disallowedTools=["Bash"],
    )
    assert "tools" not in request


async def test_sampling_and_response_format_reach_the_engine(stage: Stage) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = await asked(
        stage,
        text="hi",
        sampling={
            "temperature": 0.5,
            "topP": 0.9,
            "maxTokens": 500,
            "seed": 3,
            "stop": ["\n"],  # the echo holds it escaped
            "responseFormat": {"type": "json_schema", "json_schema": {"schema": schema}},
        },
    )
    got = {key: request[key] for key in ("temperature", "top_p", "max_tokens", "seed", "stop")}
    assert got == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 500, "seed": 3, "stop": ["\n"]}
    named = {"name": "answer", "schema": schema}
    assert request["response_format"] == {"type": "json_schema", "json_schema": named}
    assert request["model"] == "echo"


async def test_an_unknown_sampling_key_is_ignored_and_logged_once(stage: Stage) -> None:
    for _ in range(3):
        assert "mirostat" not in await asked(stage, text="hi", sampling={"mirostat": 2})
    logged = stage.bee.events("worker.sampling.ignored")
    assert [entry["key"] for entry in logged] == ["mirostat"]


async def test_reasoning_and_text_are_blocks_of_their_own(stage: Stage) -> None:
    answer = await stage.asker.ask(fake(reasoning=3, tokens=4), "echo")
    assert (answer.reasoning, answer.text) == ("r0 r1 r2 ", "w0 w1 w2 w3")
    kinds = [(tone.get("chunkType"), tone.get("blockIdx")) for tone in merged(answer.tones)]
    assert kinds == [
        (None, None),
        ("reasoning_start", 0),
        ("reasoning_delta", 0),
        ("content_block_stop", 0),
        ("text_start", 1),
        ("text_delta", 1),
        ("content_block_stop", 1),
        (None, None),
    ]
    assert answer.complete, "reasoning is not counted in chars"


async def test_text_is_told_in_both_dialects(stage: Stage) -> None:
    answer = await stage.asker.ask(fake(reasoning=1, tokens=3, rate=200), "echo")
    texts = [tone for tone in answer.tones if tone.get("chunkType") == "text_delta"]
    assert all(tone["part"] == {"type": "text", "text": tone["delta"]} for tone in texts)
    thoughts = [tone for tone in answer.tones if tone.get("chunkType") == "reasoning_delta"]
    assert all("part" not in tone for tone in thoughts)
    assert texts
    assert thoughts


@pytest.mark.parametrize("script", [{"split_utf8": True}, {"surrogates": True}, {"tokens": 300}])
async def test_chars_counts_the_code_points_of_the_text(
    stage: Stage, script: dict[str, Any]
) -> None:
    answer = await stage.asker.ask(fake(**script), "echo")
    assert answer.chars == len(answer.text) >= 5
    assert "\ufffd" not in answer.text


async def test_usage_leaves_cached_tokens_out_of_the_input(stage: Stage) -> None:
    answer = await stage.asker.ask(fake(tokens=7, cached=4), "echo")
    assert answer.ending is not None
    prompt_tokens = 4 + len(fake(tokens=7, cached=4).split())
    assert answer.ending["usage"] == {
        "input_tokens": prompt_tokens - 4,
        "output_tokens": 7,
        "cache_read_input_tokens": 4,
    }


async def test_the_length_asked_for_ends_the_answer(stage: Stage) -> None:
    answer = await stage.asker.ask("hi", "narrow", sampling={"maxTokens": 3})
    assert answer.text == "w0 w1 w2"
    assert answer.ending is not None
    assert answer.ending["finishReason"] == "length"


async def test_prompts_of_one_sid_are_answered_one_after_the_other(stage: Stage) -> None:
    texts = [fake(tokens=20 + n, rate=1000) for n in range(4)]
    for text in texts:
        stage.asker.prompt(sid="shared", modelId="echo", text=text)
    answers = [await stage.asker.collect("shared") for _ in texts]
    for n, answer in enumerate(answers):
        assert answer.complete
        assert answer.text == words(20 + n)
        assert [tone["chi"] for tone in answer.tones].count("session-ready") == 1


async def test_16_prompts_wait_on_a_sid_and_one_more_is_refused_in_its_place(
    stage: Stage,
) -> None:
    stage.asker.prompt(sid="crowded", modelId="echo", text=fake(tokens=40, rate=200))
    for _ in range(17):
        stage.asker.prompt(sid="crowded", modelId="echo", text=fake(tokens=1))
    answers = [await stage.asker.collect("crowded") for _ in range(18)]
    assert answers[0].text == words(40)
    assert [answer.text for answer in answers[1:17]] == ["w0"] * 16
    refused = answers[17].ending
    assert refused is not None
    assert refused["code"] == "no_capacity"
    assert "16 prompts wait on this sid" in refused["message"]
    assert answers[17].tones == [refused]


async def test_more_prompts_than_may_wait_are_refused_at_once(stage: Stage) -> None:
    hold = fake(tokens=1000, rate=20)
    held = [stage.asker.prompt(modelId="narrow", text=hold) for _ in range(SLOTS)]
    waiting = [stage.asker.prompt(modelId="narrow", text=fake(tokens=2)) for _ in range(2)]
    refused = await error(stage, modelId="narrow")
    assert refused["code"] == "no_capacity"
    assert "[limits] max_waiting" in refused["message"]
    for sid in held:
        stage.asker.cancel(sid)
    answers = await asyncio.gather(*map(stage.asker.collect, [*held, *waiting]))
    assert [answer.text for answer in answers[SLOTS:]] == ["w0 w1"] * 2


async def test_prompts_in_the_lines_of_their_sids_wait_as_well(stage: Stage) -> None:
    """Provenance: [limits] max_waiting is of all prompts that wait at once."""
    hold = fake(tokens=1000, rate=20)
    sids = [f"line {n}" for n in range(SLOTS)]
    for sid in sids + sids[:2]:
        stage.asker.prompt(sid=sid, modelId="narrow", text=hold)
    stage.asker.prompt(sid=sids[2], modelId="narrow", text=hold)
    stage.asker.cancel(sids[2])
    held, refused = [await stage.asker.collect(sids[2]) for _ in range(2)]
    assert held.ending is not None
    assert refused.ending is not None
    assert held.ending["finishReason"] == "cancelled"
    assert refused.ending["code"] == "no_capacity"
    for sid in sids:
        stage.asker.cancel(sid)
    await asyncio.gather(*(stage.asker.collect(sid) for sid in sids[:2] + sids[:2] + sids[3:]))


async def test_dialect_delta_sends_text_once(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir, bee='dialect = "delta"')) as (_, _, asker):
        answer = await asker.ask("hi", "echo")
    assert answer.complete
    assert not [tone for tone in answer.tones if "part" in tone]


async def straight(stage: Stage, **fields: Any) -> Answer:
    """Has humd send this prompt to the bee as it is; the asker has claimed its sid."""
    sid = f"straight-{stage.asker.received}"
    stage.asker.send({"chi": "attach", "sid": sid, "rid": sid})
    await stage.asker.echoed(sid)
    stage.humd.inject("vllm-worker", encode({"chi": "prompt", "sid": sid, **fields}))
    return await stage.asker.collect(sid)


def words(count: int) -> str:
    """Returns the scripted engine's answer of so many tokens."""
    return " ".join(f"w{n}" for n in range(count))


def merged(tones: list[Tone]) -> list[Tone]:
    """Returns the tones with one delta for each run of deltas."""
    kinds = [tone.get("chunkType", "") for tone in tones]
    return [
        tone
        for n, tone in enumerate(tones)
        if not (n and kinds[n].endswith("_delta") and kinds[n] == kinds[n - 1])
    ]
