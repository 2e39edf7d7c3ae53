"""Foragers' tools: called within the turn, side by side, and what may go wrong with them.

One bee serves the file; its scripted engine calls what each prompt says.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.forager import failure, nothing, output
from tests.rig import WAIT, ended
from tests.tool_stage import ECHO, QUOTE, READY, Stage, calls, said, shape, staged, tool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("tools_forager")]

RULES = 'step_timeout = "1s"\nmax_steps = 3'
A, B = ("read", {"path": "a"}), ("write", {"path": "b"})
ONE = "executed read {'path': 'a'} -> read:a"
TWO = "executed write {'path': 'b'} -> write:b"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Stage]:
    async with staged(tools=RULES) as stage:
        yield stage


@pytest.fixture
def stage(shared: Stage) -> Stage:
    shared.forager.calls.clear()
    shared.forager.answers = output
    return shared


async def test_a_step_of_two_calls_twice_in_one_turn(stage: Stage) -> None:
    answer = await stage.ask(calls(A, B, text="look "), calls(B, A, text="again "), QUOTE)
    assert shape(answer.tones) == [
        READY,
        *said(0, "look "),
        ONE,
        TWO,
        *said(1, "again "),
        TWO,
        ONE,
        *said(2, "heard read:a write:b write:b read:a"),
        "finish stop",
    ]
    assert answer.tones[0]["tools"] == [{"name": "read"}, {"name": "write"}]
    assert answer.complete
    called = list(stage.forager.calls)
    assert [(c["toolName"], c["name"], c["args"]) for c in called] == [
        (name, name, args) for name, args in (A, B, B, A)
    ]
    assert len({call["callId"] for call in called}) == 4
    assert {call["sid"] for call in called} == {answer.sid}


async def test_the_calls_of_a_step_are_out_together_and_told_as_they_come_back(
    stage: Stage,
) -> None:
    stage.forager.answers = nothing
    sid = stage.prompt(calls(A, B), QUOTE)
    first, second = await stage.forager.called(2)
    stage.forager.answer(second, output="later, first")
    stage.forager.answer(first, output={"lines": 3})
    answer = await stage.asker.collect(sid, WAIT)
    assert shape(answer.tones) == [
        READY,
        "executed write {'path': 'b'} -> later, first",
        "executed read {'path': 'a'} -> {\"lines\":3}",
        *said(0, 'heard {"lines":3} later, first'),
        "finish stop",
    ]


async def test_usage_sums_the_steps(stage: Stage) -> None:
    answer = await stage.ask(calls(A), {"text": ["done"]})
    usage = ended(answer)["usage"]
    first = len(json.dumps(A[1])) // 8 + 2  # an event for the head, one for each eight characters
    assert usage["output_tokens"] >= first + 1
    plain = await stage.ask({"text": ["done"]})
    assert usage["input_tokens"] > 2 * ended(plain)["usage"]["input_tokens"] > 0


async def test_the_engine_is_asked_again_with_calls_and_results(stage: Stage) -> None:
    step = {**calls(A, text="I see. "), "reasoning": 2}
    answer = await stage.ask(step, ECHO)
    request: dict[str, Any] = json.loads(answer.text.removeprefix("I see. "))
    _, said_, result = request["messages"]
    assert said_["content"] == "I see. "
    assert said_["reasoning"] == "r0 r1 "
    (call,) = said_["tool_calls"]
    assert call["function"] == {"name": "read", "arguments": '{"path":"a"}'}
    assert result == {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": "read",
        "content": "read:a",
    }
    assert [t["function"]["name"] for t in request["tools"]] == ["read", "write"]
    assert answer.reasoning == "r0 r1 "


async def test_a_forager_that_answers_error_is_an_error_result(stage: Stage) -> None:
    stage.forager.answers = failure
    answer = await stage.ask(calls(A), QUOTE)
    assert shape(answer.tones) == [
        READY,
        "executed read {'path': 'a'} -> error: no such file wrong",
        *said(0, "heard error: no such file"),
        "finish stop",
    ]


async def test_a_forager_that_never_answers_ends_the_turn_in_time(stage: Stage) -> None:
    stage.forager.answers = lambda call: output(call) if call["toolName"] == "read" else None
    answer = await stage.ask(calls(A, B), QUOTE)
    assert shape(answer.tones) == [READY, ONE, "error tool_timeout"]
    message = ended(answer)["message"]
    assert message == "no result of write within 1 s ([tools] step_timeout)"
    assert ended(answer)["usage"]["output_tokens"] > 0
    # What comes too late is logged and told to nobody.
    heard = stage.asker.received
    stage.forager.answer(stage.forager.calls[1], output="late")
    after = await stage.ask({"text": ["on"]})
    assert stage.asker.received - heard == len(after.tones)
    late = stage.bee.events("worker.tool.result_unexpected")[-1]
    assert (late["call"], late["reason"]) == (stage.forager.calls[1]["callId"], "late")


async def test_too_many_steps_end_the_turn(stage: Stage) -> None:
    answer = await stage.ask(calls(A), calls(A), calls(A), calls(A), QUOTE)
    assert shape(answer.tones) == [READY, ONE, ONE, ONE, "error too_many_steps"]
    assert "3 steps ([tools] max_steps)" in ended(answer)["message"]


async def test_wrong_arguments_go_back_to_the_model_once(stage: Stage) -> None:
    answer = await stage.ask(calls(("read", '{"path": '), B), QUOTE)
    told = 'error: the arguments of read must be one JSON object, and these are none: {"path": '
    assert shape(answer.tones) == [
        READY,
        TWO,
        *said(0, f"heard {told} write:b"),
        "finish stop",
    ]
    assert [call["name"] for call in stage.forager.calls] == ["write"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (("read", "[1]"), "the arguments of read must be one JSON object"),
        (("fly", {}), "no tool 'fly'; the tools are read, write"),
    ],
)
async def test_what_is_wrong_twice_ends_the_turn(
    stage: Stage, bad: tuple[str, Any], message: str
) -> None:
    answer = await stage.ask(calls(bad), calls(bad), QUOTE)
    assert shape(answer.tones) == [READY, "error engine_error"]
    assert message in ended(answer)["message"]
    assert not stage.forager.calls


async def test_a_finish_for_tools_without_a_call_says_so(stage: Stage) -> None:
    answer = await stage.ask({"text": ["hm"], "finish": "tool_calls"})
    assert shape(answer.tones) == [READY, *said(0, "hm"), "error engine_error"]
    assert "sent none" in ended(answer)["message"]


async def test_calls_that_end_with_stop_count_and_those_cut_by_length_do_not(stage: Stage) -> None:
    named = {"type": "function", "function": {"name": "read"}}
    answer = await stage.ask(calls(A), ECHO, sampling={"toolChoice": named})
    assert shape(answer.tones)[:2] == [READY, ONE]
    assert "tool_choice" not in json.loads(answer.text), "the model is free after its call"
    cut = await stage.ask(calls(A), QUOTE, sampling={"maxTokens": 2})
    assert shape(cut.tones) == [READY, "finish length"]


async def test_a_choice_that_must_be_met_asks_for_strict_arguments(stage: Stage) -> None:
    for choice, sent in (
        ("required", "required"),
        ({"type": "tool", "toolName": "read"}, {"type": "function", "function": {"name": "read"}}),
    ):
        answer = await stage.ask(ECHO, sampling={"toolChoice": choice, "parallelToolCalls": False})
        request = json.loads(answer.text)
        assert request["tool_choice"] == sent
        assert all(t["function"]["strict"] is True for t in request["tools"])
        assert request["parallel_tool_calls"] is False
    free = json.loads((await stage.ask(ECHO, sampling={"toolChoice": "auto"})).text)
    assert not any("strict" in t["function"] for t in free["tools"])
    none = json.loads((await stage.ask(ECHO, sampling={"toolChoice": "none"})).text)
    assert "tools" not in none


async def test_a_tool_of_a_forager_wins_over_one_of_the_asker(stage: Stage) -> None:
    answer = await stage.ask(calls(A), QUOTE, tools=[tool("read"), tool("mine")])
    assert answer.tones[0]["tools"] == [{"name": "read"}, {"name": "write"}, {"name": "mine"}]
    assert shape(answer.tones) == [READY, ONE, *said(0, "heard read:a"), "finish stop"]


async def test_cancel_while_held_ends_at_once_and_the_sid_is_free(stage: Stage) -> None:
    stage.forager.answers = nothing
    sid = stage.prompt(calls(A, text="wait "), QUOTE)
    waits = stage.prompt({"text": ["second"]}, sid=sid)
    (call,) = await stage.forager.called(1)
    stage.asker.cancel(sid)
    for _ in range(2):
        answer = await stage.asker.collect(sid, WAIT)
        assert ended(answer)["finishReason"] == "cancelled"
    stage.forager.answer(call, output="late")
    assert waits == sid
    assert (await stage.ask({"text": ["on"]}, sid=sid)).text == "on"


async def test_a_second_prompt_waits_while_the_first_is_held(stage: Stage) -> None:
    stage.forager.answers = nothing
    sid = stage.prompt(calls(A), QUOTE)
    stage.prompt({"text": ["second"]}, sid=sid)
    (call,) = await stage.forager.called(1)
    stage.forager.answer(call, output="x")
    first, second = [await stage.asker.collect(sid, WAIT) for _ in range(2)]
    assert (first.text, second.text) == ("heard x", "second")
