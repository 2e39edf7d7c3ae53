"""What the model asks of tools: its pieces gathered, judged, and told to it again (pure).

A call that can't be made (a tool that was not offered, arguments that are no JSON object) is
`wrong`: it never leaves the bee, the model gets the sentence as the tool's answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.frames import Mmm
from hum_workers.thrum.tones import encode
from hum_workers.tools.call_id import CallIds, Owner
from hum_workers.tools.result import Result
from hum_workers.tools.tool import Tool

MOST_CALLS = 128
"""Calls of one step; a model that asks for more has run wild."""
MOST_CHARS = 4 * 1024 * 1024
"""Characters of all names and arguments of one step."""
OUTPUT_SHOWN = 256 * 1024
"""Characters of a forager's result that the asker is shown; the model gets all."""
NAMES_TOLD = 20
QUOTED = 200


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a step."""

    call_id: str
    """Ours, for humd and the asker."""
    engine_id: str
    """The engine's own, by which it pairs calls and results: some templates check its form."""
    name: str
    args: dict[str, Any]
    owner: Owner | None = None
    """None for a call that is wrong."""
    wrong: str = ""
    """What the model is told instead of a result."""

    def tone(self, sid: str) -> dict[str, Any]:
        """Returns the `tool-call` tone."""
        return {
            "chi": "tool-call",
            "sid": sid,
            "callId": self.call_id,
            "toolName": self.name,
            "name": self.name,
            "args": self.args,
        }

    def use(self, sid: str) -> dict[str, Any]:
        """Returns the chunk that tells the call in the second dialect."""
        use = {
            "id": self.call_id,
            "name": self.name,
            "input": self.args,
            "partial": _json(self.args),
        }
        part = {"type": "tool_use", "toolCall": use}
        return {"chi": "chunk", "sid": sid, "chunkType": "tool_use", "part": part}

    def executed(self, sid: str, result: Result) -> dict[str, Any]:
        """Returns the chunk that shows the asker a tool which a forager ran."""
        cut = len(result.text) - OUTPUT_SHOWN
        shown = (
            result.text if cut <= 0 else f"{result.text[:OUTPUT_SHOWN]}… ({cut} more characters)"
        )
        return {
            "chi": "chunk",
            "sid": sid,
            "chunkType": "tool_executed",
            "callId": self.call_id,
            "toolName": self.name,
            "arguments": self.args,
            "output": shown,
            "isError": result.is_error,
        }


@dataclass(frozen=True)
class Step:
    """One answer of the engine that asks for tools, and what they have said so far."""

    calls: tuple[Call, ...]
    text: str = ""
    reasoning: str = ""
    results: Mapping[str, str] = field(default_factory=dict)
    """By callId, as the model gets them."""

    def answered(self, results: Mapping[str, str]) -> Step:
        """Returns the step with more results."""
        return replace(self, results={**self.results, **results})

    @property
    def wrong(self) -> str:
        """What is wrong with its first wrong call; empty when none is."""
        return next((call.wrong for call in self.calls if call.wrong), "")

    @property
    def sound(self) -> bool:
        """Whether it has a call that can be made."""
        return any(call.owner for call in self.calls)

    def waiting(self, owner: Owner) -> list[Call]:
        """Returns the calls of this owner that have no result."""
        return [c for c in self.calls if c.owner is owner and c.call_id not in self.results]

    def messages(self) -> list[dict[str, Any]]:
        """Returns the step as the engine reads it: the answer with its calls, then the results."""
        said: dict[str, Any] = {
            "role": "assistant",
            "content": self.text,
            "tool_calls": [
                {
                    "id": call.engine_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _json(call.args)},
                }
                for call in self.calls
            ],
        }
        if self.reasoning:
            said["reasoning"] = self.reasoning
        return [said, *map(self._result, self.calls)]

    def _result(self, call: Call) -> dict[str, Any]:
        text = call.wrong or self.results.get(call.call_id, "")
        return {
            "role": "tool",
            "tool_call_id": call.engine_id,
            "name": call.name,
            "content": text,
        }


class Pieces:
    """One answer of the engine while it streams, kept as far as a further request needs it."""

    __slots__ = ("_calls", "_chars", "_reasoning", "_text", "over")

    def __init__(self) -> None:
        self.over = False
        """It asked for more than is kept."""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        # Pieces are joined once, at the end: a call's text that grows piece by piece would be
        # copied for each of them, and 3 MiB of arguments would hold up every other turn for 8 s.
        self._calls: dict[int, tuple[list[str], list[str], list[str]]] = {}
        self._chars = 0

    def add(self, kind: Mmm, data: Any) -> None:
        """Takes a piece of text, of reasoning or of a call."""
        if kind == Mmm.TEXT:
            self._text.append(data)
        elif kind == Mmm.REASONING:
            self._reasoning.append(data)
        elif not self.over:
            call = self._calls.get(data["index"])
            if call is None:
                call = self._calls[data["index"]] = ([], [], [])
            for kept, key in zip(call, ("id", "name", "arguments"), strict=True):
                if data[key]:
                    kept.append(data[key])
            self._chars += len(data["name"]) + len(data["arguments"])
            self.over = len(self._calls) > MOST_CALLS or self._chars > MOST_CHARS

    def step(self, reason: str, tools: Mapping[str, Tool], ids: CallIds) -> Step | None:
        """Returns the step that the answer is; None when it is an ending after all.

        An answer that was cut by its length or by a filter has no calls: its last one may be half.

        Raises:
            TurnError: `engine_error`, when it ended with calls and has none, or far too many.
        """
        if reason not in ("tool_calls", "stop"):
            return None
        if self.over:
            raise TurnError(
                ErrorCode.ENGINE_ERROR,
                f"the model asked for more tools in one step than the {MOST_CALLS} calls and "
                f"{MOST_CHARS // 1024**2} MiB of arguments that may be",
            )
        if not self._calls:
            if reason == "stop":
                return None
            raise TurnError(
                ErrorCode.ENGINE_ERROR,
                "the engine ended its answer with tool calls and sent none; with a reasoning "
                "parser the model may not have left its reasoning",
            )
        calls = tuple(_judged(n, self._calls[n], tools, ids) for n in sorted(self._calls))
        return Step(calls, "".join(self._text), "".join(self._reasoning))


def _judged(
    number: int, pieces: Sequence[list[str]], tools: Mapping[str, Tool], ids: CallIds
) -> Call:
    given, *texts = pieces
    engine_id = given[0] if given else ""
    name, arguments = map("".join, texts)
    tool = tools.get(name)
    owner = tool.owner if tool is not None else None
    call = Call(
        call_id=ids.new(owner or Owner.FORAGER),
        engine_id=engine_id or f"call_{number}",
        name=name,
        args={},
    )
    if owner is None:
        return replace(call, wrong=_unknown(name, tools))
    args = read_arguments(arguments)
    if args is not None:
        made = replace(call, args=args, owner=owner)
        try:
            encode(made.use(""))
        except ValueError:
            args = None
        else:
            return made
    shown = arguments if len(arguments) <= QUOTED else arguments[:QUOTED] + "…"
    return replace(
        call,
        wrong=f"error: the arguments of {name} must be one JSON object, and these are none: "
        f"{shown}",
    )


def _unknown(name: str, tools: Mapping[str, Tool]) -> str:
    names = list(tools)
    more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
    return f"error: no tool {name[:QUOTED]!r}; the tools are {', '.join(names[:NAMES_TOLD])}{more}"


def read_arguments(text: str) -> dict[str, Any] | None:
    """Returns the arguments that the model wrote; None when they are no JSON object.

    No text at all stands for no arguments.
    """
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return value if isinstance(value, dict) else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
