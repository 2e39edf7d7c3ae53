"""The tools of a prompt: whose they are, which of them the model is told of, and how (pure).

A tool is run by a forager of the mesh or by the asker (thrum, section 7). What stands here decides
before the first request; `tool_calls` judges what the model makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hum_workers.tools.call_id import Owner
from hum_workers.turns.sampling import Choice, kind_of, refuse

RETURN_ROUTE = "hum_workers_return_route"
"""The tool with which a bee tells humd where the result of an asker's tool goes; never offered."""
SCHEMAS = ("inputSchema", "parameters", "input_schema")


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool that the model may call. `schema` is a JSON schema of an object."""

    name: str
    description: str
    schema: dict[str, Any]
    owner: Owner


def brought(tone: Mapping[str, Any]) -> tuple[Tool, ...]:
    """Returns the tools of a prompt tone, foragers' first, without those that it forbids.

    A forager's tool wins over an asker's of the same name: humd would bring it the call.

    Raises:
        TurnError: `bad_prompt`, when `tools` is no list.
    """
    asked, lent = tone.get("tools"), tone.get("foragerTools")
    if asked is not None and not isinstance(asked, list):
        raise refuse(f"tools must be a list, not {kind_of(asked)}")
    forbidden, allowed = tone.get("disallowedTools"), tone.get("allowedTools")
    found: dict[str, Tool] = {}
    for tools, owner in ((lent, Owner.FORAGER), (asked, Owner.ASKER)):
        for tool in _read(tools, owner) if isinstance(tools, list) else ():
            found.setdefault(tool.name, tool)
    return tuple(
        tool
        for tool in found.values()
        if tool.name != RETURN_ROUTE
        and not (isinstance(forbidden, list) and tool.name in forbidden)
        and not (isinstance(allowed, list) and tool.name not in allowed)
    )


def _read(tools: Sequence[Any], owner: Owner) -> Iterator[Tool]:
    """Yields the tools in hum's or OpenAI's form; what has no name is skipped."""
    for entry in tools:
        inner = entry.get("function") if isinstance(entry, dict) else None
        tool = inner if isinstance(inner, dict) else entry
        name = tool.get("name") if isinstance(tool, dict) else None
        if isinstance(name, str) and name:
            about = tool.get("description")
            yield Tool(name, about if isinstance(about, str) else "", _schema(tool), owner)


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    given = next((tool[key] for key in SCHEMAS if tool.get(key) is not None), None)
    return {"type": "object", **given} if isinstance(given, dict) else {"type": "object"}


@dataclass(frozen=True, kw_only=True)
class ToolRules:
    """What an egg says of tools. By default there are none."""

    parser: bool = False
    """The engine finds tool calls in an answer; without, it refuses a request that has tools."""
    foragers: bool | frozenset[str] = False
    """Whether foragers' tools are offered, or the names of those that are."""
    step_timeout: float = 0.0
    """Seconds for the foragers' answers to the calls of one step."""
    max_steps: int = 0
    """Times that one turn may call tools."""

    def admit(self, tools: Sequence[Tool], choice: Choice | None) -> tuple[Tool, ...]:
        """Returns the tools that are offered to the model.

        Raises:
            TurnError: `bad_prompt`, when the asker's own tools can't be done, or its choice.
        """
        if choice is not None and choice.kind == "none":
            return ()
        own = next((tool for tool in tools if tool.owner is Owner.ASKER), None)
        if own is not None and not self.parser:
            raise refuse(
                f"the prompt has tools ({own.name[:40]}); tools need [model] tool_call_parser, "
                "and the egg of this model does not set it"
            )
        offered = tuple(tool for tool in tools if self._offers(tool))
        _check_choice(choice, offered)
        return offered

    def _offers(self, tool: Tool) -> bool:
        if tool.owner is Owner.ASKER:
            return True
        if isinstance(self.foragers, bool):
            return self.foragers and self.parser
        return self.parser and tool.name in self.foragers

    def notice(self) -> str:
        """Returns why foragers' tools are left out, for the log; empty when they are not."""
        if not self.parser:
            return "no [model] tool_call_parser: foragers' tools are left out, askers' are refused"
        if self.foragers is False:
            return "[tools] foragers = false: foragers' tools are left out"
        if self.foragers is True:
            return ""
        names = ", ".join(sorted(self.foragers)) or "none"
        return f"[tools] foragers: of foragers' tools only these are offered: {names}"


def _check_choice(choice: Choice | None, offered: Sequence[Tool]) -> None:
    if choice is None or choice.kind == "auto":
        return
    if choice.kind == "required" and not offered:
        raise refuse("sampling.toolChoice asks for a tool call, and no tool is offered")
    if choice.kind == "tool" and all(tool.name != choice.name for tool in offered):
        raise refuse(f"sampling.toolChoice names {choice.name[:40]!r}, and no such tool is offered")


def tool_fields(
    tools: Sequence[Tool], choice: Choice | None, parallel: bool | None
) -> dict[str, Any]:
    """Returns the fields of the chat request that offer the tools; none when there are none.

    With a call that must come, vLLM holds the arguments to the schema only of a function that says
    `strict`.
    """
    if not tools:
        return {}
    must = choice is not None and choice.kind in ("required", "tool")
    fields: dict[str, Any] = {"tools": [_function(tool, strict=must) for tool in tools]}
    if choice is not None and choice.kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif must:
        fields["tool_choice"] = "required"
    if parallel is not None:
        fields["parallel_tool_calls"] = parallel
    return fields


def _function(tool: Tool, *, strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.schema}
    if tool.description:
        function["description"] = tool.description
    if strict:
        function["strict"] = True
    return {"type": "function", "function": function}
