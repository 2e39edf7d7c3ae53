"""What a tool answered, read from a `tool-result` or an `error` with a callId (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

NO_MESSAGE = "the tool failed and did not say why"


@dataclass(frozen=True)
class Result:
    """One answer of a tool. `text` is what the model gets."""

    text: str
    is_error: bool = False


def read_result(tone: Mapping[str, Any]) -> Result:
    """Reads the answer of a forager or an asker.

    `output` wins over `result`; a value that is no string is passed on as JSON, an object that has
    nothing but `content` as its content.
    """
    if tone.get("chi") == "error":
        message = tone.get("message") or tone.get("error")
        text = message if isinstance(message, str) and message.strip() else NO_MESSAGE
        return Result(f"error: {text}", is_error=True)
    output = tone.get("output")
    text = _text(tone.get("result") if output is None else output)
    is_error = tone.get("isError") is True
    return Result(text or NO_MESSAGE if is_error else text, is_error)


def _text(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"content"}:
        value = value["content"]
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
