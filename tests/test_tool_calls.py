"""What the model asks of tools: pieces gathered, judged, and told to it again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.frames import Mmm
from hum_workers.thrum.tones import decode, encode
from hum_workers.tools.call_id import CallIds, Owner
from hum_workers.tools.step import MOST_CALLS, MOST_CHARS, Pieces, Step, read_arguments
from hum_workers.tools.tool import Tool
from tests.test_sampling import JSON

IDS = CallIds(bytes(32))
TOOLS = {
    "lent": Tool("lent", "", {"type": "object"}, Owner.FORAGER),
    "mine": Tool("mine", "", {"type": "object"}, Owner.ASKER),
}


def piece(index: int, name: str = "", arguments: str = "", ident: str = "") -> dict[str, Any]:
    return {"index": index, "id": ident, "name": name, "arguments": arguments}


def gathered(*pieces: dict[str, Any], text: str = "") -> Pieces:
    found = Pieces()
    if text:
        found.add(Mmm.TEXT, text)
    for one in pieces:
        found.add(Mmm.TOOL, one)
    return found


def step(*pieces: dict[str, Any], reason: str = "tool_calls", text: str = "") -> Step:
    made = gathered(*pieces, text=text).step(reason, TOOLS, IDS)
    assert made is not None
    return made


def test_pieces_of_calls_that_come_mixed_are_put_together() -> None:
    made = step(
        piece(1, "mine", ident="b"),
        piece(0, "lent", ident="a"),
        piece(1, arguments='{"x"'),
        piece(0, arguments="{}"),
        piece(1, arguments=": 1}"),
        text="well",
    )
    assert [(c.name, c.args, c.engine_id, c.owner) for c in made.calls] == [
        ("lent", {}, "a", Owner.FORAGER),
        ("mine", {"x": 1}, "b", Owner.ASKER),
    ]
    assert [IDS.owner(call.call_id) for call in made.calls] == [Owner.FORAGER, Owner.ASKER]
    assert (made.text, made.sound, made.wrong) == ("well", True, "")


def test_a_call_without_arguments_has_none() -> None:
    assert step(piece(0, "lent")).calls[0].args == {}
    assert step(piece(0, "lent")).calls[0].engine_id == "call_0"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        (
            "lent",
            "{",
            "error: the arguments of lent must be one JSON object, and these are none: {",
        ),
        ("lent", "[1]", "must be one JSON object"),
        ("lent", '"{}"', "must be one JSON object"),
        ("lent", '{"a": NaN}', "must be one JSON object"),
        ("lent", '{"a": 1e999}', "must be one JSON object"),
        ("lent", '{"a": ' + "[" * 200 + "]" * 200 + "}", "must be one JSON object"),
        ("fly", "{}", "error: no tool 'fly'; the tools are lent, mine"),
    ],
)
def test_a_wrong_call_is_told_to_the_model_and_to_nobody_else(
    name: str, arguments: str, told: str
) -> None:
    made = step(piece(0, name, arguments), piece(1, "mine"))
    assert told in made.wrong
    assert made.sound
    assert [call.name for call in made.waiting(Owner.ASKER)] == ["mine"]
    assert made.waiting(Owner.FORAGER) == []
    said, result, _ = made.messages()
    assert said["tool_calls"][0]["function"] == {"name": name, "arguments": "{}"}
    assert result["content"] == made.wrong
    assert len(made.wrong) < 400


def test_a_stop_with_calls_is_a_step_and_one_without_is_an_ending() -> None:
    assert step(piece(0, "lent"), reason="stop").sound
    assert gathered(text="x").step("stop", TOOLS, IDS) is None


@pytest.mark.parametrize("reason", ["length", "content_filter", "repetition"])
def test_an_answer_that_was_cut_has_no_calls(reason: str) -> None:
    assert gathered(piece(0, "lent", '{"a"')).step(reason, TOOLS, IDS) is None


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([], "sent none"),
        ([piece(n, "lent") for n in range(MOST_CALLS + 1)], "more tools in one step"),
        ([piece(0, "lent"), piece(0, arguments="x" * (MOST_CHARS + 1))], "more tools in one step"),
    ],
)
def test_no_call_or_far_too_many_are_an_engine_error(
    pieces: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(TurnError, match=said) as caught:
        gathered(*pieces).step("tool_calls", TOOLS, IDS)
    assert caught.value.code is ErrorCode.ENGINE_ERROR


def test_results_stand_behind_the_answer_in_the_order_of_the_calls() -> None:
    made = step(piece(0, "mine", ident="a"), piece(1, "lent", ident="b"), text="so")
    first, second = made.calls
    answered = made.answered({second.call_id: "two"})
    assert [call.name for call in answered.waiting(Owner.ASKER)] == ["mine"]
    whole = answered.answered({first.call_id: "one"})
    assert whole.messages() == [
        {
            "role": "assistant",
            "content": "so",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "mine", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "lent", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "name": "mine", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "name": "lent", "content": "two"},
    ]


@given(JSON, st.integers(1, 9))
def test_any_arguments_become_a_call_that_humd_reads_or_a_wrong_one(value: Any, cut: int) -> None:
    text = json.dumps(value)
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    made = step(piece(0, "mine"), *(piece(0, arguments=one) for one in pieces))
    (call,) = made.calls
    assert (call.owner is None) == bool(call.wrong)
    if not isinstance(value, dict):
        assert call.wrong
    for tone in (call.tone("s"), call.use("s")):
        assert decode(encode(tone)) == tone
    json.loads(made.messages()[0]["tool_calls"][0]["function"]["arguments"])


@given(st.text())
def test_any_text_is_read_as_arguments_or_refused(text: str) -> None:
    args = read_arguments(text)
    assert args is None or isinstance(args, dict)
