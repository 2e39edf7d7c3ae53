"""Sampling of a prompt tone, as fields of an OpenAI chat request (pure).

Keys come in camelCase; the OpenAI spelling in snake_case is read too. What the engine would refuse
is refused here with a line that names the key; what nobody knows is returned, to be logged once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hum_workers.errors import ErrorCode, TurnError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_STOPS = 4
"""vLLM 0.32 takes at most so many stop strings."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

Check = Callable[[str, Any], Any]


def refuse(message: str) -> TurnError:
    """Returns the error that ends a turn whose prompt can't be done."""
    return TurnError(ErrorCode.BAD_PROMPT, message)


def kind_of(value: Any) -> str:
    """Returns the JSON name of a value's type."""
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else "another type")


@dataclass(frozen=True)
class Choice:
    """Whether the model may, must or must not call a tool; `tool` is the one of this name."""

    kind: Literal["auto", "none", "required", "tool"]
    name: str = ""


@dataclass(frozen=True)
class Sampling:
    """What a prompt asks of the sampler."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the chat request, checked, without those that have a name of their own here."""
    max_tokens: int | None = None
    choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    unknown: tuple[str, ...] = ()
    """Keys that were ignored, as they were spelled."""


def parse_sampling(value: Any) -> Sampling:
    """Reads the `sampling` of a prompt tone; a key whose value is null counts as absent.

    Raises:
        TurnError: `bad_prompt`; the message names the key.
    """
    if value is None:
        return Sampling()
    if not isinstance(value, dict):
        raise refuse(f"sampling must be an object, not {kind_of(value)}")
    fields: dict[str, Any] = {}
    unknown: list[str] = []
    for key, asked in value.items():
        name = _snake(str(key))
        if name not in KNOWN:
            unknown.append(str(key))
        elif asked is not None:
            target, check = KNOWN[name]
            checked = check(f"sampling.{key}", asked)
            if checked is not None:
                fields[target] = checked
    max_tokens = fields.pop("max_tokens", None)
    least = fields.get("min_tokens", 0)
    if max_tokens is not None and least > max_tokens:
        raise refuse(f"sampling.minTokens is {least}, above maxTokens {max_tokens}")
    choice, parallel = fields.pop("tool_choice", None), fields.pop("parallel_tool_calls", None)
    return Sampling(fields, max_tokens, choice, parallel, tuple(unknown))


def _snake(key: str) -> str:
    """Returns a camelCase key as snake_case; others unchanged."""
    return "".join(f"_{c.lower()}" if c.isascii() and c.isupper() else c for c in key)


def _shown(value: float) -> str:
    """Returns a number for a message; Python refuses to print an int of 4,301 digits."""
    return str(value) if -1e18 < value < 1e18 else "out of range"


def _number(low: float, high: float, *, above: bool = False) -> Check:
    """Returns a check for a number from `low` (itself left out with `above`) to `high`."""

    def check(key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(f"{key} must be a number, not {kind_of(value)}")
        if not low <= value <= high or (above and value == low):
            bound = f"above {low:g}" if above else f"from {low:g}"
            limit = f" up to {high:g}" if above else f" to {high:g}"
            raise refuse(f"{key} is {_shown(value)}; it must be {bound}{limit}")
        return value

    return check


def _integer(low: int, high: int = INT64_MAX) -> Check:
    """Returns a check for a whole number; `8.0` is one."""

    def check(key: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            shown = _shown(value) if isinstance(value, float) else kind_of(value)
            raise refuse(f"{key} must be a whole number, not {shown}")
        if value < low:
            raise refuse(f"{key} is {_shown(value)}; it must be at least {low}")
        if value > high:
            raise refuse(f"{key} is {_shown(value)}; it must be at most {high}")
        return value

    return check


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(f"{key} must be true or false, not {kind_of(value)}")
    return value


def _strings(most: int | None = None) -> Check:
    """Returns a check for a string or a list of strings, none of them empty."""

    def check(key: str, value: Any) -> list[str] | None:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            raise refuse(f"{key} must be a string or a list of strings, not {kind_of(value)}")
        for item in items:
            if not isinstance(item, str):
                raise refuse(f"{key} must hold strings, not {kind_of(item)}")
            if not item:
                raise refuse(f"{key} holds an empty string")
        if most is not None and len(items) > most:
            raise refuse(f"{key} has {len(items)} strings; the engine takes at most {most}")
        return items or None

    return check


def _token_ids(key: str, value: Any) -> list[int] | None:
    if not isinstance(value, list):
        raise refuse(f"{key} must be a list of token numbers, not {kind_of(value)}")
    check = _integer(0)
    return [check(key, item) for item in value] or None


def _biases(key: str, value: Any) -> dict[str, float] | None:
    if not isinstance(value, dict):
        raise refuse(f"{key} must be an object of token number to bias, not {kind_of(value)}")
    check = _number(-100, 100)
    for token in value:
        if not str(token).isdecimal():
            raise refuse(f"{key} has the key {str(token)[:40]!r}, which is no token number")
    return {str(token): check(f"{key}.{token}", bias) for token, bias in value.items()} or None


def _effort(key: str, value: Any) -> str:
    if value not in EFFORTS:
        shown = repr(value[:40]) if isinstance(value, str) else kind_of(value)
        raise refuse(f"{key} is {shown}; it must be one of {', '.join(EFFORTS)}")
    return str(value)


def _template_values(key: str, value: Any) -> dict[str, Any] | None:
    """Values for the model's chat template; never the template itself."""
    if not isinstance(value, dict):
        raise refuse(f"{key} must be an object, not {kind_of(value)}")
    for taken in ("chat_template", "tokenize", "return_dict"):
        if taken in value:
            raise refuse(f"{key}.{taken} can't be set by a prompt")
    return value or None


def response_format(key: str, value: Any) -> dict[str, Any] | None:
    """Returns the engine's form of a response format; None for plain text.

    Read are `"json_object"` and the like, OpenAI's `{type, json_schema: {name, schema}}`, and the
    flat `{type: "json", schema}` of the Vercel SDK.
    """
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, dict):
        raise refuse(f"{key} must be an object with a type, not {kind_of(value)}")
    kind = value.get("type")
    box = value.get("json_schema", value.get("jsonSchema"))
    if kind == "text":
        return None
    if kind == "json_object" or (kind == "json" and box is None and value.get("schema") is None):
        return {"type": "json_object"}
    if kind not in ("json", "json_schema"):
        shown = repr(kind[:40]) if isinstance(kind, str) else kind_of(kind)
        raise refuse(f"{key}.type is {shown}; it must be text, json_object or json_schema")
    if box is None:
        box = value
    if not isinstance(box, dict) or not isinstance(box.get("schema"), dict):
        raise refuse(f"{key} of type json_schema needs an object `schema`")
    named = box.get("name")
    schema: dict[str, Any] = {"name": named if isinstance(named, str) and named else "answer"}
    schema["schema"] = box["schema"]
    if isinstance(box.get("strict"), bool):
        schema["strict"] = box["strict"]
    return {"type": "json_schema", "json_schema": schema}


def _only_one(key: str, value: Any) -> None:
    if _integer(1)(key, value) != 1:
        raise refuse(f"{key} is {_shown(value)}; one answer a prompt is all that this worker gives")


def _not_done(key: str, value: Any) -> None:
    if value not in (False, 0):
        raise refuse(f"{key} is not done by this worker; leave it out")


def tool_choice(key: str, value: Any) -> Choice:
    """Returns the choice of a tool, in hum's, OpenAI's, Anthropic's or the Vercel SDK's form.

    A string that is none of the known words is the name of a tool.
    """
    kind, name = value, ""
    if isinstance(value, dict):
        kind = value.get("type", "tool")
        inner = value.get("function")
        named = inner if kind in ("function", "tool") and isinstance(inner, dict) else value
        name = named.get("name") or named.get("toolName") or ""
    elif isinstance(value, str) and value not in CHOICES:
        kind, name = "tool", value
    word = CHOICES.get(kind) if isinstance(kind, str) else None
    if word is not None:
        return Choice(word)
    if kind not in ("tool", "function") or not isinstance(name, str) or not name:
        raise refuse(f"{key} must be auto, none, required or an object that names a tool")
    return Choice("tool", name)


CHOICES: Mapping[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",
}


def _meaningless(key: str, value: Any) -> None:
    """Accepts a key that changes nothing here."""


KNOWN: Mapping[str, tuple[str, Check]] = {
    "temperature": ("temperature", _number(0, 2)),
    "top_p": ("top_p", _number(0, 1, above=True)),
    "top_k": ("top_k", _integer(-1, 2**31 - 1)),
    "min_p": ("min_p", _number(0, 1)),
    "max_tokens": ("max_tokens", _integer(1)),
    "max_output_tokens": ("max_tokens", _integer(1)),
    "max_completion_tokens": ("max_tokens", _integer(1)),
    "min_tokens": ("min_tokens", _integer(0)),
    "stop": ("stop", _strings(MAX_STOPS)),
    "stop_sequences": ("stop", _strings(MAX_STOPS)),
    "stop_token_ids": ("stop_token_ids", _token_ids),
    "bad_words": ("bad_words", _strings()),
    "seed": ("seed", _integer(INT64_MIN)),
    "frequency_penalty": ("frequency_penalty", _number(-2, 2)),
    "presence_penalty": ("presence_penalty", _number(-2, 2)),
    "repetition_penalty": ("repetition_penalty", _number(0, 100, above=True)),
    "logit_bias": ("logit_bias", _biases),
    "ignore_eos": ("ignore_eos", _boolean),
    "response_format": ("response_format", response_format),
    "reasoning_effort": ("reasoning_effort", _effort),
    "include_reasoning": ("include_reasoning", _boolean),
    "thinking_token_budget": ("thinking_token_budget", _integer(0)),
    "chat_template_kwargs": ("chat_template_kwargs", _template_values),
    "n": ("", _only_one),
    "best_of": ("", _only_one),
    "logprobs": ("", _not_done),
    "top_logprobs": ("", _not_done),
    "prompt_logprobs": ("", _not_done),
    "use_beam_search": ("", _not_done),
    "echo": ("", _not_done),
    "tool_choice": ("tool_choice", tool_choice),
    "parallel_tool_calls": ("parallel_tool_calls", _boolean),
    "stream": ("", _meaningless),
    "stream_options": ("", _meaningless),
    "user": ("", _meaningless),
}
