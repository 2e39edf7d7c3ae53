"""The chat request that a prompt becomes, and how many tokens it may ask for (pure).

Every request streams and asks for usage with each event, so that a broken answer can still be
counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from hum_workers.tools.tool import tool_fields
from hum_workers.turns.prompt import Prompt
from hum_workers.turns.sampling import refuse
from hum_workers.turns.schema_size import check_schemas

_STREAMING = {"include_usage": True, "continuous_usage_stats": True}
_NONE: Mapping[str, Any] = {}


def chat_request(
    prompt: Prompt,
    *,
    model: str,
    max_model_len: int | None = None,
    default_max_tokens: int | None = None,
    more: Mapping[str, Any] = _NONE,
    renamed: Mapping[str, str] = _NONE,
    most_schema: int = 0,
) -> dict[str, Any]:
    """Returns the body of the engine's chat route.

    Args:
        model: the name under which the engine serves the model.
        max_model_len: the context of the engine in tokens, as it listed it; None when unknown.
        default_max_tokens: the egg's `model.max_tokens`, for a prompt that asks for no length.
        more: fields that this engine gets with each request.
        renamed: fields that this engine calls otherwise; an empty name leaves one out.
        most_schema: alternatives that one schema of a request may have; 0 is without limit.

    Raises:
        TurnError: `bad_prompt`, when a schema is larger than this engine can bear.
    """
    request: dict[str, Any] = {"model": model, "messages": prompt.messages}
    request.update(prompt.sampling.fields)
    if prompt.tools:
        sampling = prompt.sampling
        request.update(tool_fields(prompt.tools, sampling.choice, sampling.parallel_tool_calls))
    check_schemas(request, most_schema)
    length = fit_max_tokens(prompt.sampling.max_tokens, default_max_tokens, max_model_len)
    if length is not None:
        request["max_tokens"] = length
        if request.get("min_tokens", 0) > length:
            request["min_tokens"] = length
    request["stream"] = True
    request["stream_options"] = _STREAMING
    for name in renamed.keys() & request.keys():
        value = request.pop(name)
        if renamed[name]:
            request[renamed[name]] = value
    request.update(more)
    return request


def to_json(request: dict[str, Any]) -> bytes:
    """Returns the bytes of a request.

    Raises:
        TurnError: `bad_prompt`, when it holds what JSON can't: half a surrogate pair, say.
    """
    try:
        return msgspec.json.encode(request)
    except (UnicodeEncodeError, RecursionError, msgspec.MsgspecError, TypeError) as error:
        raise refuse(f"the prompt can't be written as JSON: {error}") from error


def fit_max_tokens(asked: int | None, default: int | None, max_model_len: int | None) -> int | None:
    """Returns the length to ask for; None leaves it to the engine: all that the context holds.

    vLLM 0.32 refuses only a length above its whole context and cuts everything else to what the
    prompt leaves (tried with prompts of 511 and 512 of 512 tokens); so the cap is all it needs.
    Earlier ones refuse prompt and length together: `room_from_refusal` serves those.
    """
    length = default if asked is None else asked
    if length is None or max_model_len is None:
        return length
    return min(length, max_model_len)


_CONTEXT = re.compile(r"maximum context length is (\d+)")
_INPUT = re.compile(r"(?:has|contains) (at least )?(\d+) (?:input )?tokens|(\d+) in the messages")


def room_from_refusal(message: str) -> int | None:
    """Returns the tokens that the context still holds after the prompt, read from a refusal.

    None when the message is about something else, when it only gives a lower bound of the prompt's
    length, or when the prompt leaves no room: then asking again is of no use.
    """
    context, prompt = _CONTEXT.search(message), _INPUT.search(message)
    if context is None or prompt is None or prompt.group(1):
        return None
    room = int(context.group(1)) - int(prompt.group(2) or prompt.group(3))
    return room if room > 0 else None


_ECHO = re.compile(r" \(parameter=\w+, value=.*\)$", re.DOTALL)


def refusal_line(message: str, max_model_len: int | None) -> str:
    """Returns the engine's refusal of a request as one line for the asker.

    A prompt that fills the context to the last token is refused by vLLM for a length of 0, which
    nobody asked for.
    """
    line = " ".join(_ECHO.sub("", message).split())
    if line.startswith("max_tokens must be at least 1, got 0"):
        of = f" of {max_model_len} tokens" if max_model_len else ""
        return f"the prompt fills the model's context{of} and leaves no room for an answer"
    return line
