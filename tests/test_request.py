"""Chat requests, and how long an answer they may ask for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hum_workers.errors import TurnError
from hum_workers.turns.prompt import parse_prompt
from hum_workers.turns.request import (
    chat_request,
    fit_max_tokens,
    refusal_line,
    room_from_refusal,
    to_json,
)


def request(sampling: dict[str, Any] | None = None, **limits: Any) -> dict[str, Any]:
    prompt = parse_prompt({"sid": "s", "modelId": "alias", "text": "hi", "sampling": sampling})
    return chat_request(prompt, model="served", **limits)


def test_every_request_streams_with_usage_and_the_served_name() -> None:
    assert msgspec.json.decode(to_json(request({"topP": 0.5}))) == {
        "model": "served",
        "messages": [{"role": "user", "content": "hi"}],
        "top_p": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


@pytest.mark.parametrize(
    ("asked", "default", "context", "sent"),
    [
        (None, None, 2048, None),
        (None, 512, 2048, 512),
        (9, 512, 2048, 9),
        (100_000, 512, 2048, 2048),
        (None, 4096, 2048, 2048),
        (100_000, None, None, 100_000),
    ],
)
def test_a_length_is_cut_to_the_context(
    asked: int | None, default: int | None, context: int | None, sent: int | None
) -> None:
    assert fit_max_tokens(asked, default, context) == sent


def test_a_least_length_never_exceeds_what_is_asked_for() -> None:
    body = request({"minTokens": 400}, max_model_len=2048, default_max_tokens=16)
    assert (body["min_tokens"], body["max_tokens"]) == (16, 16)


CONTEXT = "This model's maximum context length is "


@pytest.mark.parametrize(
    ("message", "room"),
    [
        (f"too large: 5000. {CONTEXT}2048 tokens and your request has 38 input tokens", 2010),
        (f"{CONTEXT}4097 tokens. However, you requested 4160 tokens (64 in the messages,", 4033),
        (f"{CONTEXT}512 tokens. However, your prompt contains at least 513 input tokens,", None),
        (f"{CONTEXT}512 tokens. However, your prompt contains 600 input tokens, which", None),
        ("temperature must be in [0, 2], got 3.0.", None),
    ],
)
def test_the_room_is_read_from_a_refusal(message: str, room: int | None) -> None:
    assert room_from_refusal(message) == room


def test_a_refusal_is_one_line_without_the_value_that_was_sent() -> None:
    said = "top_p must be in (0, 1], got 0. (parameter=top_p, value=secret\n)"
    assert refusal_line(said, 512) == "top_p must be in (0, 1], got 0."


def test_a_prompt_that_fills_the_context_is_named_as_such() -> None:
    """vLLM 0.32 refuses it for a length of 0, tried with a prompt of 512 of 512 tokens."""
    said = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
    assert "fills the model's context of 512 tokens" in refusal_line(said, 512)


def test_half_a_surrogate_pair_is_a_bad_prompt() -> None:
    with pytest.raises(TurnError, match="can't be written as JSON"):
        to_json({"messages": [{"role": "user", "content": "\ud83d"}]})


def test_fields_come_as_the_engine_calls_them_and_what_it_has_not_stays_out() -> None:
    prompt = parse_prompt(
        {"sid": "s", "text": "hi", "sampling": {"repetitionPenalty": 1.5, "minTokens": 3}}
    )
    made = chat_request(
        prompt,
        model="served",
        more={"return_progress": True},
        renamed={"repetition_penalty": "repeat_penalty", "min_tokens": "", "seed": "x"},
    )
    assert made["repeat_penalty"] == 1.5
    assert made["return_progress"] is True
    assert not {"repetition_penalty", "min_tokens", "seed", "x"} & made.keys()


def test_a_schema_that_the_engine_can_not_bear_is_refused_with_number_and_limit() -> None:
    def ask(schema: dict[str, Any], most: int) -> None:
        request({"responseFormat": {"type": "json_schema", "schema": schema}}, most_schema=most)

    choices: list[dict[str, Any]] = [
        {"oneOf": [{"const": str(i)} for i in range(300)]},
        {"enum": list(range(300))},
        {"items": {"anyOf": [{"type": "object"}] * 300}},
        {"properties": {str(i): {"type": "string"} for i in range(301)}, "required": ["1", "1", 2]},
    ]
    for schema in choices:
        ask(schema, 300)
        ask(schema, 0)
        with pytest.raises(TurnError, match=r"responseFormat has 300 alternatives.*at most 299"):
            ask(schema, 299)
    names = [str(i) for i in range(5000)]
    ask({"properties": {name: {"type": "string"} for name in names}, "required": names}, 10)


def test_a_schema_of_many_levels_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(2000):
        schema = {"not": schema}
    asked = {"responseFormat": {"type": "json_schema", "schema": schema}}
    with pytest.raises(TurnError, match=r"levels deep.*at most 64"):
        request(asked, most_schema=400)
    request(asked)


def test_the_schema_of_each_tool_is_measured() -> None:
    schema = {"type": "object", "properties": {str(i): {} for i in range(20)}}
    tools = [{"name": f"t{n}", "description": "", "inputSchema": schema} for n in range(3)]
    prompt = parse_prompt({"sid": "s", "modelId": "m", "text": "hi", "tools": tools})
    chat_request(prompt, model="m", most_schema=20)
    with pytest.raises(TurnError, match=r"schema of the tool t0 has 20 alternatives"):
        chat_request(prompt, model="m", most_schema=19)
