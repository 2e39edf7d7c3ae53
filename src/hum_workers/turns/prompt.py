"""A prompt tone, read and checked (pure): what is asked, in the form of an OpenAI chat.

Promise: a `Prompt` can be sent to the engine as it is; everything else is a `bad_prompt` whose one
line says what is wrong (thrum, section 5). Of pollen and tools only the form is read here; whether
they may go to the engine is said by `media.MediaRules`, `media.refuse_untaken` and
`tools.ToolRules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hum_workers.media.pollen import Pollen, attachments, media_part
from hum_workers.tools.tool import Tool, brought
from hum_workers.turns.sampling import Sampling, kind_of, parse_sampling, refuse

ROLES = ("system", "developer", "user", "assistant", "tool")
PASSED_ON = ("name", "tool_calls", "tool_call_id", "reasoning")
"""Fields of a message beside role and content that the engine's chat templates read."""

_NO_TEXT = {"type": "text", "text": ""}


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One turn's question."""

    sid: str
    model: str = ""
    """The `modelId` as asked; empty when the tone names none."""
    messages: list[dict[str, Any]]
    media: tuple[Pollen, ...] = ()
    """Images, audio and video in the messages, not held against the egg's rules yet."""
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[Tool, ...] = ()
    """Tools that came with it; `ToolRules.admit` says which of them the model is told of."""

    @property
    def weight(self) -> int:
        """About the characters that it holds: what a turn that waits costs in memory."""
        return sum(map(_weight, self.messages)) + sum(_weight(tool.schema) for tool in self.tools)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Sampling keys that nobody knows, to be logged once each."""
        return self.sampling.unknown


def _weight(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_weight, value.values()))
    return sum(map(_weight, value)) if isinstance(value, (list, tuple)) else 8


def is_bare(tone: Mapping[str, Any]) -> bool:
    """Whether a prompt says nothing, as one that comes along with a tool's result does."""
    return not (tone.get("messages") or tone.get("attachments")) and all(
        _says_nothing(tone.get(key)) for key in ("content", "text")
    )


def _says_nothing(value: Any) -> bool:
    if isinstance(value, list):
        return all(one in ("", _NO_TEXT) for one in value)
    return value is None or value == ""


def parse_prompt(tone: Mapping[str, Any]) -> Prompt:
    """Reads a prompt tone. `messages` wins over `content`, `content` over `text`.

    Raises:
        TurnError: `bad_prompt`; the message is one line that says what.
    """
    tools = brought(tone)
    media: list[Pollen] = []
    return Prompt(
        sid=_string(tone, "sid"),
        model=_string(tone, "modelId"),
        messages=_conversation(tone, media),
        media=tuple(media),
        sampling=parse_sampling(tone.get("sampling")),
        tools=tools,
    )


def _string(tone: Mapping[str, Any], key: str) -> str:
    value = tone.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise refuse(f"{key} must be a string, not {kind_of(value)}")
    return value


def _conversation(tone: Mapping[str, Any], media: list[Pollen]) -> list[dict[str, Any]]:
    """Returns the messages of a tone, its system prompt first; what they hold goes to `media`."""
    system = _string(tone, "systemPrompt")
    messages = tone.get("messages")
    if messages is not None and not isinstance(messages, list):
        raise refuse(f"messages must be a list, not {kind_of(messages)}")
    if messages:
        conversation = [_message(i, message, media) for i, message in enumerate(messages)]
    else:
        content = _content("content", tone.get("content"), media)
        content = content or _content("text", tone.get("text"), media)
        conversation = [{"role": "user", "content": content}] if content else []
    _attach(conversation, tone.get("attachments"), media)
    if not any(message.get("content") for message in conversation):
        raise refuse("the prompt has no text: content, text and messages are empty")
    return _with_system(system, conversation)


def _attach(conversation: list[dict[str, Any]], value: Any, media: list[Pollen]) -> None:
    """Puts attachments after the text of the last user message, or into a message of their own."""
    found = attachments(value)
    if not found:
        return
    media += [pollen for pollen, _ in found]
    parts = [part for _, part in found]
    said = next((one for one in reversed(conversation) if one["role"] == "user"), None)
    if said is None:
        conversation.append({"role": "user", "content": parts})
        return
    content = said["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    said["content"] = [*content, *parts]


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


def _message(index: int, message: Any, media: list[Pollen]) -> dict[str, Any]:
    """Returns one message of the OpenAI form with the fields that the engine reads."""
    place = f"messages[{index}]"
    if not isinstance(message, dict):
        raise refuse(f"{place} must be an object, not {kind_of(message)}")
    role = message.get("role")
    if role not in ROLES:
        shown = repr(role[:40]) if isinstance(role, str) else kind_of(role)
        raise refuse(f"{place}.role is {shown}; it must be one of {', '.join(ROLES)}")
    content = _content(f"{place}.content", message.get("content"), media)
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


def _content(place: str, value: Any, media: list[Pollen]) -> str | list[dict[str, Any]]:
    """Returns content as the engine takes it: a string, or parts; empty when there is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refuse(f"{place} must be a string or a list of parts, not {kind_of(value)}")
    parts = [part for i, one in enumerate(value) if (part := _part(f"{place}[{i}]", one, media))]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts or ""


def _part(place: str, part: Any, media: list[Pollen]) -> dict[str, Any] | None:
    """Returns one part as the engine takes it; None when it is empty text."""
    if isinstance(part, str):
        part = {"text": part}
    if not isinstance(part, dict):
        raise refuse(f"{place} must be a part object or a string, not {kind_of(part)}")
    if (found := media_part(place, part)) is not None:
        media.append(found[0])
        return found[1]
    kind = part.get("type", "text")
    if kind not in ("text", "input_text"):
        shown = repr(kind[:40]) if isinstance(kind, str) else kind_of(kind)
        raise refuse(f"{place} is a part of type {shown}; text, images, audio and video are known")
    text = part.get("text")
    if not isinstance(text, str):
        raise refuse(f"{place}.text must be a string, not {kind_of(text)}")
    return {"type": "text", "text": text} if text else None
