"""Askers' tools: the call ends the turn, the conversation is parked, the result goes on with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hum_workers.fake_humd import Answer
from hum_workers.fake_humd.wire import Tone
from tests.forager import output
from tests.rig import WAIT, ended
from tests.tool_stage import (
    ECHO,
    QUOTE,
    READY,
    Stage,
    calls,
    last_call,
    said,
    shape,
    staged,
    tool,
)
from tests.transcripts import load

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("tools_asker")]

MINE: dict[str, Any] = {"tools": [tool("mine"), tool("yours")]}
A, B = ("mine", {"q": 1}), ("yours", {"q": 2})
CALL_A = ["call mine {'q': 1}", "use mine", "finish tool_use"]
CALL_B = ["call yours {'q': 2}", "use yours", "finish tool_use"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


@pytest.fixture
def stage(shared: Stage) -> Stage:
    shared.forager.calls.clear()
    shared.forager.answers = output
    return shared


async def parked(stage: Stage, *steps: Any, sid: str | None = None) -> tuple[Answer, Tone]:
    """Asks and returns the answer that ends with the call of the asker's tool, and the call."""
    answer = await stage.ask(*(steps or (calls(A), QUOTE)), sid=sid, **MINE)
    assert ended(answer)["finishReason"] == "tool_use"
    return answer, last_call(answer)


@pytest.mark.parametrize("other", [False, True])
async def test_two_calls_of_one_step_go_out_one_after_the_other(stage: Stage, other: bool) -> None:
    answer, call = await parked(stage, calls(A, B, text="well "), QUOTE)
    assert shape(answer.tones) == [READY, *said(0, "well "), *CALL_A]
    names = [{"name": name} for name in ("read", "write", "mine", "yours")]
    assert answer.tones[0]["tools"] == names
    second = await stage.resumed(call, "rainy, 4C", f"{answer.sid}-2" if other else None)
    assert shape(second.tones) == [READY, *CALL_B]
    assert second.tones[0]["tools"] == names
    assert ended(second)["usage"] == {"input_tokens": 0, "output_tokens": 0}
    third = await stage.resumed(last_call(second), {"content": "dry"})
    assert shape(third.tones) == [READY, *said(0, "heard rainy, 4C dry"), "finish stop"]
    assert third.complete
    assert last_call(second)["callId"] != call["callId"]


async def test_the_call_is_told_in_both_dialects(stage: Stage) -> None:
    _, call = await parked(stage)
    answer, _ = await parked(stage)
    (use,) = [tone for tone in answer.tones if tone.get("chunkType") == "tool_use"]
    own = last_call(answer)
    assert use["part"] == {
        "type": "tool_use",
        "toolCall": {"id": own["callId"], "name": "mine", "input": {"q": 1}, "partial": '{"q":1}'},
    }
    assert call["args"] == {"q": 1}


async def test_the_return_route_is_that_of_the_transcript(stage: Stage) -> None:
    heard: list[Tone] = []
    stage.humd.tap = lambda hive, t: heard.append(dict(t)) if hive == "vllm-worker" else None
    try:
        _, call = await parked(stage)
    finally:
        stage.humd.tap = None
    route = heard[1:5]  # behind session-ready
    (scene,) = [scene for scene in load() if "return route" in scene.case]
    sent = [s.tone for s in scene.steps if s.client == "worker" and s.event == "send" and s.tone]
    theirs = [tone for tone in sent if tone.get("tools") or tone["chi"] == "tool-call"]
    assert [tone["chi"] for tone in route] == ["hello", "tool-call", "hello", "tool-call"]
    assert route[0]["bee"] == theirs[0]["bee"] == ["worker", "forager"]
    assert [t["name"] for t in route[0]["tools"]] == [t["name"] for t in theirs[0]["tools"]]
    assert {**route[1], "sid": "s8", "callId": "k4"} == theirs[1]
    assert route[2] == {k: v for k, v in route[0].items() if k != "tools"} | {"bee": ["worker"]}
    assert route[2]["models"] == ["echo"]
    assert route[1]["callId"] == route[3]["callId"] == call["callId"]
    assert route[3].keys() == theirs[2].keys()
    assert stage.humd.serves("echo")


async def test_no_prompt_is_offered_the_tool_of_the_return_route(stage: Stage) -> None:
    reserved = [tool("hum_workers_return_route"), tool("mine")]
    answer = await stage.ask(ECHO, tools=reserved)
    names = [t["function"]["name"] for t in json.loads(answer.text)["tools"]]
    assert names == ["read", "write", "mine"]


async def test_results_come_in_several_forms(stage: Stage) -> None:
    forms: list[tuple[dict[str, Any], str]] = [
        ({"result": "r", "output": "o"}, "o"),
        ({"result": {"a": [1]}}, '{"a":[1]}'),
        ({"result": {"content": "c"}}, "c"),
        ({"result": {"content": {"a": 1}}}, '{"a":1}'),
        ({"result": 4}, "4"),
        ({"chi": "error", "message": "not today"}, "error: not today"),
    ]
    for fields, heard in forms:
        _, call = await parked(stage)
        sid = stage.result(call, None, **fields)
        assert (await stage.asker.collect(sid, WAIT)).text == f"heard {heard}"


async def test_an_asker_may_call_again_and_again(stage: Stage) -> None:
    answer, call = await parked(stage, calls(A), calls(B), calls(A), QUOTE)
    for text in ("one", "two"):
        answer = await stage.resumed(call, text)
        call = last_call(answer)
    last = await stage.resumed(call, "three")
    assert last.text == "heard one two three"


async def test_a_prompt_without_text_behind_its_result_is_absorbed(stage: Stage) -> None:
    answer, call = await parked(stage)
    sid = f"{answer.sid}-new"
    stage.asker.prompt(sid=sid, modelId="echo", text="", tools=MINE["tools"], rid=f"prompt-{sid}")
    before = stage.asker.received
    stage.result(call, {"content": "rain"}, sid, rid="tr")
    whole = await stage.asker.collect(sid, WAIT)
    assert shape(whole.tones) == [READY, *said(0, "heard rain"), "finish stop"]

    answer, call = await parked(stage)
    sid = f"{answer.sid}-new"
    stage.result(call, {"content": "rain"}, sid)
    stage.asker.prompt(sid=sid, modelId="echo", text="", tools=MINE["tools"])
    whole = await stage.asker.collect(sid, WAIT)
    assert shape(whole.tones) == [READY, *said(0, "heard rain"), "finish stop"]
    assert (await stage.ask({"text": ["on"]}, sid=sid)).text == "on", "and nothing else came"
    assert stage.asker.received > before


async def test_words_behind_a_result_are_the_users_message_after_it(stage: Stage) -> None:
    answer, call = await parked(stage, calls(A, B), ECHO)
    sid = f"{answer.sid}-new"
    stage.result(call, "rain", sid)
    stage.asker.prompt(sid=sid, modelId="echo", text="and be brief", systemPrompt="not again")
    second = await stage.asker.collect(sid, WAIT)
    assert shape(second.tones) == [READY, *CALL_B]
    third = await stage.resumed(last_call(second), "dry")
    messages = json.loads(third.text)["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [m["content"] for m in messages[2:]] == ["rain", "dry", "and be brief"]


async def test_a_prompt_without_text_and_without_its_result_is_a_bad_prompt(stage: Stage) -> None:
    await parked(stage)
    sid = stage.asker.prompt(modelId="echo", text="")
    answer = await stage.asker.collect(sid, WAIT)
    assert shape(answer.tones) == ["error bad_prompt"]
    assert "no text" in ended(answer)["message"]


async def test_a_new_prompt_drops_what_is_parked_for_its_sid(stage: Stage) -> None:
    answer, call = await parked(stage)
    other, untouched = await parked(stage)
    assert (await stage.ask({"text": ["on"]}, sid=answer.sid)).text == "on"
    late = await stage.resumed(call, "late")
    assert shape(late.tones) == ["error tool_call_expired"]
    assert (await stage.resumed(untouched, "x")).text == "heard x"
    assert other.sid != answer.sid


async def test_a_late_result_says_nothing_while_a_turn_runs_on_its_sid(stage: Stage) -> None:
    answer, call = await parked(stage)
    sid = stage.prompt({"tokens": 200, "rate": 200}, sid=answer.sid)
    stage.result(call, "late")
    running = await stage.asker.collect(sid, WAIT)
    assert shape(running.tones)[-1] == "finish stop"
    assert [tone["chi"] for tone in running.tones].count("error") == 0
    assert stage.bee.events("worker.tool.result_unexpected")[-1]["reason"] == "late"


@pytest.mark.parametrize("how", ["cancel", "cleanup"])
async def test_a_cancel_while_parked_is_silent_and_final(stage: Stage, how: str) -> None:
    answer, call = await parked(stage)
    heard = stage.asker.received
    stage.asker.send({"chi": how, "sid": answer.sid})
    late = await stage.resumed(call, "late")
    assert shape(late.tones) == ["error tool_call_expired"]
    assert stage.asker.received - heard == 1


async def test_a_second_result_of_one_call_is_late(stage: Stage) -> None:
    _, call = await parked(stage)
    assert (await stage.resumed(call, "x")).text == "heard x"
    # humd has used up the way back: only another humd, or a hostile one, brings it again.
    tone = {"chi": "tool-result", "sid": call["sid"], "callId": call["callId"], "result": "again"}
    stage.humd.inject("vllm-worker", json.dumps(tone).encode() + b"\n")
    again = await stage.asker.collect(call["sid"], WAIT)
    assert shape(again.tones) == ["error tool_call_expired"]


async def test_a_call_that_was_never_ours_is_ignored_and_logged(stage: Stage) -> None:
    heard = stage.asker.received
    for call_id in ("c-77", "hw-a" + "0" * 40, "", 7):
        tone = {"chi": "tool-result", "sid": "s", "callId": call_id, "result": "x"}
        stage.humd.inject("vllm-worker", json.dumps(tone).encode() + b"\n")
    answer = await stage.ask({"text": ["on"]})
    assert stage.asker.received - heard == len(answer.tones)
    logged = stage.bee.events("worker.tool.result_unexpected")
    assert [entry["reason"] for entry in logged[-2:]] == ["no call of ours"] * 2


async def test_a_tool_that_was_not_offered_goes_back_to_the_model(stage: Stage) -> None:
    answer, call = await parked(stage, calls(("fly", {}), A), QUOTE)
    assert shape(answer.tones) == [READY, *CALL_A]
    resumed = await stage.resumed(call, "x")
    assert resumed.text == "heard error: no tool 'fly'; the tools are read, write, mine, yours x"


async def test_a_drained_bee_refuses_a_result(stage: Stage) -> None:
    """Last of the file: it stops the bee."""
    _, call = await parked(stage)
    hold = stage.prompt({"tokens": 1_000_000, "rate": 100})
    async for tone in stage.asker.stream(hold):
        if tone.get("chunkType") == "text_delta":
            break
    stage.bee.process.terminate()
    await stage.humd.until(lambda: not stage.humd.serves("echo"))
    late = await stage.resumed(call, "x")
    assert shape(late.tones) == ["error shutting_down"]
    stage.asker.cancel(hold)
    await stage.asker.collect(hold)
    async with asyncio.timeout(WAIT):
        assert await stage.bee.process.wait() == 0
