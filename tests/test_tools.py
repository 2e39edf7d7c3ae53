"""Tools of a prompt: the forms they come in, who wins, what the engine is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.tools.call_id import Owner
from hum_workers.tools.tool import RETURN_ROUTE, Tool, ToolRules, brought, tool_fields
from hum_workers.turns.sampling import Choice
from tests.test_sampling import JSON

OBJECT = {"type": "object"}
ALL = ToolRules(parser=True, foragers=True, step_timeout=1, max_steps=3)


def names(tools: tuple[Tool, ...]) -> list[str]:
    return [tool.name for tool in tools]


def tools(*named: str, owner: Owner = Owner.FORAGER) -> tuple[Tool, ...]:
    return tuple(Tool(name, "", OBJECT, owner) for name in named)


def refusal(rules: ToolRules, offered: tuple[Tool, ...], choice: Choice | None = None) -> str:
    with pytest.raises(TurnError) as caught:
        rules.admit(offered, choice)
    assert caught.value.code is ErrorCode.BAD_PROMPT
    return caught.value.message


@pytest.mark.parametrize(
    ("tool", "schema"),
    [
        ({"name": "a", "inputSchema": {"properties": {}}}, {**OBJECT, "properties": {}}),
        ({"name": "a", "input_schema": OBJECT}, OBJECT),
        ({"name": "a", "parameters": {"type": "object", "x": 1}}, {**OBJECT, "x": 1}),
        ({"type": "function", "function": {"name": "a", "parameters": OBJECT}}, OBJECT),
        ({"name": "a"}, OBJECT),
        ({"name": "a", "inputSchema": "string"}, OBJECT),
        ({"name": "a", "inputSchema": None, "parameters": {"y": 1}}, {**OBJECT, "y": 1}),
    ],
)
def test_a_tool_comes_in_several_forms(tool: dict[str, Any], schema: dict[str, Any]) -> None:
    (found,) = brought({"tools": [tool, "plain string", {}, {"name": ""}, 7, {"name": 5}]})
    assert (found.name, found.schema, found.owner) == ("a", schema, Owner.ASKER)


def test_a_foragers_tool_wins_and_is_listed_first() -> None:
    found = brought({"tools": [{"name": "b"}, {"name": "a"}], "foragerTools": [{"name": "a"}]})
    assert [(tool.name, tool.owner) for tool in found] == [
        ("a", Owner.FORAGER),
        ("b", Owner.ASKER),
    ]


def test_forbidden_tools_go_and_allowed_ones_narrow_the_rest() -> None:
    tone = {"tools": [{"name": n} for n in "abc"], "foragerTools": [{"name": n} for n in "de"]}
    assert names(brought({**tone, "disallowedTools": ["a", "d"]})) == ["e", "b", "c"]
    assert names(brought({**tone, "allowedTools": ["b", "d"]})) == ["d", "b"]
    assert names(brought({**tone, "allowedTools": []})) == []
    assert len(brought({**tone, "disallowedTools": "abc", "allowedTools": None})) == 5


def test_the_tool_of_the_return_route_is_dropped_wherever_it_turns_up() -> None:
    reserved = [{"name": RETURN_ROUTE}]
    assert brought({"tools": reserved, "foragerTools": reserved}) == ()


def test_tools_that_are_no_list_are_refused_and_foragers_are_not_the_askers_fault() -> None:
    with pytest.raises(TurnError, match="tools must be a list, not an object"):
        brought({"tools": {}})
    assert brought({"foragerTools": {"name": "a"}}) == ()


def test_without_a_parser_foragers_tools_are_left_out_and_askers_refused() -> None:
    rules = ToolRules(parser=False, foragers=True)
    assert rules.admit(tools("a"), None) == ()
    said = refusal(rules, tools("a", "get", owner=Owner.ASKER))
    assert said.startswith("the prompt has tools (a); tools need [model] tool_call_parser")
    assert rules.admit(tools("a", owner=Owner.ASKER), Choice("none")) == ()


@pytest.mark.parametrize(
    ("foragers", "left"),
    [(True, ["a", "b", "mine"]), (False, ["mine"]), (frozenset({"b", "x"}), ["b", "mine"])],
)
def test_the_egg_says_which_foragers_tools_are_offered(
    foragers: bool | frozenset[str], left: list[str]
) -> None:
    rules = ToolRules(parser=True, foragers=foragers)
    offered = (*tools("a", "b"), *tools("mine", owner=Owner.ASKER))
    assert names(rules.admit(offered, None)) == left
    assert bool(rules.notice()) == (foragers is not True)


def test_a_choice_that_can_not_be_met_is_refused() -> None:
    assert "no tool is offered" in refusal(ALL, (), Choice("required"))
    assert "names 'x'" in refusal(ALL, tools("a"), Choice("tool", "x"))
    assert names(ALL.admit(tools("a"), Choice("tool", "a"))) == ["a"]
    assert ALL.admit(tools("a"), Choice("none")) == ()


def test_the_engine_is_told_of_tools_and_choice() -> None:
    (tool,) = (Tool("a", "does", {"type": "object", "x": 1}, Owner.ASKER),)
    function = {"name": "a", "parameters": {"type": "object", "x": 1}, "description": "does"}
    assert tool_fields((), Choice("auto"), True) == {}
    assert tool_fields((tool,), None, None) == {
        "tools": [{"type": "function", "function": function}]
    }
    assert tool_fields((tool,), Choice("required"), False) == {
        "tools": [{"type": "function", "function": {**function, "strict": True}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    named = tool_fields((tool,), Choice("tool", "a"), None)["tool_choice"]
    assert named == {"type": "function", "function": {"name": "a"}}


FIELDS = st.sampled_from(["tools", "foragerTools", "disallowedTools", "allowedTools"])


@given(st.dictionaries(FIELDS, JSON | st.lists(JSON), max_size=4))
def test_any_tone_brings_tools_that_can_be_offered(tone: dict[str, Any]) -> None:
    try:
        found = brought(tone)
    except TurnError:
        return
    assert all(tool.name and tool.schema["type"] for tool in found)
    assert len(set(names(found))) == len(found)
    tool_fields(ALL.admit(found, None), None, None)
