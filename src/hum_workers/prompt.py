"""A prompt tone, read and checked (pure): what is asked, in the form of an OpenAI chat.

Promise: a `Prompt` can be sent to the engine as it is; everything else is a `bad_prompt` whose one
line says what is wrong (thrum, section 5). Text only: pollen and tools are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hum_workers.sampling import Sampling, kind_of, parse_sampling, refuse

ROLES = ("system", "developer", "user", "assistant", "tool")
PASSED_ON = ("name", "tool_calls", "tool_call_id", "reasoning")
"""Fields of a message beside role and content that the engine's chat templates read."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One turn's question."""

    sid: str
    model: str = ""
    """The `modelId` as asked; empty when the tone names none."""
    messages: list[dict[str, Any]]
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Sampling keys that nobody knows, to be logged once each."""
        return self.sampling.unknown


def parse_prompt(tone: Mapping[str, Any]) -> Prompt:
    """Reads a prompt tone. `messages` wins over `content`, `content` over `text`.

    Raises:
        TurnError: `bad_prompt`; the message is one line that says what.
    """
    refuse_attachments(tone.get("attachments"))
    refuse_tools(tone)
    return Prompt(
        sid=_string(tone, "sid"),
        model=_string(tone, "modelId"),
        messages=_conversation(tone),
        sampling=parse_sampling(tone.get("sampling")),
    )


def _string(tone: Mapping[str, Any], key: str) -> str:
    value = tone.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise refuse(f"{key} must be a string, not {kind_of(value)}")
    return value


def refuse_attachments(value: Any) -> None:
    """Raises `bad_prompt` when the prompt carries pollen."""
    if value is None or value == []:
        return
    if not isinstance(value, list):
        raise refuse(f"attachments must be a list, not {kind_of(value)}")
    first = value[0].get("kind") if isinstance(value[0], dict) else None
    what = f"an attachment of kind {first[:40]!r}" if isinstance(first, str) else "attachments"
    raise refuse(f"the prompt has {what}; this model takes text only")


def refuse_tools(tone: Mapping[str, Any]) -> None:
    """Raises `bad_prompt` when the asker brings a tool of its own that the prompt allows.

    Tools of foragers stand in `foragerTools` and are left out without a word.
    """
    tools = tone.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list):
        raise refuse(f"tools must be a list, not {kind_of(tools)}")
    names = [name for name in map(tool_name, tools) if name]
    dropped = tone.get("disallowedTools")
    allowed = tone.get("allowedTools")
    if isinstance(dropped, list):
        names = [name for name in names if name not in dropped]
    if isinstance(allowed, list):
        names = [name for name in names if name in allowed]
    if names:
        raise refuse(
            f"the prompt has tools ({names[0][:40]}); tools need [model] tool_call_parser, and "
            "this release does not do them yet"
        )


def tool_name(tool: Any) -> str:
    """Returns the name of a tool in hum's or OpenAI's form; empty when it has none."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    name = tool.get("name") or (function.get("name") if isinstance(function, dict) else None)
    return name if isinstance(name, str) else ""


def _conversation(tone: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a tone, its system prompt first."""
    system = _string(tone, "systemPrompt")
    messages = tone.get("messages")
    if messages is not None and not isinstance(messages, list):
        raise refuse(f"messages must be a list, not {kind_of(messages)}")
    if messages:
        conversation = [_message(i, message) for i, message in enumerate(messages)]
    else:
        content = _content("content", tone.get("content")) or _content("text", tone.get("text"))
        conversation = [{"role": "user", "content": content}] if content else []
    if not any(message.get("content") for message in conversation):
        raise refuse("the prompt has no text: content, text and messages are empty")
    return _with_system(system, conversation)


def _with_system(system: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages with the system prompt put first.

    It is merged into a system message that is there already: many chat templates allow one only.
    """
    if not system:
        return messages
    head = messages[0]
    if head["role"] not in ("system", "developer"):
        return [{"role": "system", "content": system}, *messages]
    content = head.get("content") or ""
    if isinstance(content, str):
        merged: Any = f"{system}\n\n{content}" if content else system
    else:
        merged = [{"type": "text", "text": system}, *content]
    return [{**head, "content": merged}, *messages[1:]]


def _message(index: int, message: Any) -> dict[str, Any]:
    """Returns one message of the OpenAI form with the fields that the engine reads."""
    place = f"messages[{index}]"
    if not isinstance(message, dict):
        raise refuse(f"{place} must be an object, not {kind_of(message)}")
    role = message.get("role")
    if role not in ROLES:
        shown = repr(role[:40]) if isinstance(role, str) else kind_of(role)
        raise refuse(f"{place}.role is {shown}; it must be one of {', '.join(ROLES)}")
    content = _content(f"{place}.content", message.get("content"))
    checked: dict[str, Any] = {"role": role, "content": content}
    for key in PASSED_ON:
        value = message.get(key)
        if value is not None:
            checked[key] = _tool_calls(place, value) if key == "tool_calls" else value
            if key != "tool_calls" and not isinstance(value, str):
                raise refuse(f"{place}.{key} must be a string, not {kind_of(value)}")
    if role == "tool" and "tool_call_id" not in checked:
        raise refuse(f"{place} has the role tool and no tool_call_id")
    return checked


def _tool_calls(place: str, value: Any) -> list[dict[str, Any]]:
    """Returns the tool calls of an earlier answer, arguments as JSON text."""
    if not isinstance(value, list):
        raise refuse(f"{place}.tool_calls must be a list, not {kind_of(value)}")
    for call in value:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise refuse(f"{place}.tool_calls holds a call without function.name")
        if not isinstance(function.get("arguments"), str):
            raise refuse(
                f"{place}.tool_calls: arguments of {function['name'][:40]} must be a string"
            )
    return value


def _content(place: str, value: Any) -> str | list[dict[str, str]]:
    """Returns text as the engine takes it: a string, or text parts; empty when there is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refuse(f"{place} must be a string or a list of parts, not {kind_of(value)}")
    texts = [text for i, part in enumerate(value) if (text := _part(f"{place}[{i}]", part))]
    if len(texts) <= 1:
        return texts[0] if texts else ""
    return [{"type": "text", "text": text} for text in texts]


def _part(place: str, part: Any) -> str:
    """Returns the text of one part."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise refuse(f"{place} must be a part object or a string, not {kind_of(part)}")
    kind = part.get("type", "text")
    if kind not in ("text", "input_text"):
        shown = repr(kind[:40]) if isinstance(kind, str) else kind_of(kind)
        raise refuse(f"{place} is a part of type {shown}; this model takes text only")
    text = part.get("text")
    if not isinstance(text, str):
        raise refuse(f"{place}.text must be a string, not {kind_of(text)}")
    return text
