"""Sampling keys: each into its field of the chat request, or refused by name (thrum, section 5)."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.turns.sampling import Choice, parse_sampling

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def refusal(sampling: Any) -> str:
    with pytest.raises(TurnError) as caught:
        parse_sampling(sampling)
    assert caught.value.code is ErrorCode.BAD_PROMPT
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("key", "value", "field", "sent"),
    [
        ("temperature", 0, "temperature", 0),
        ("temperature", 0.7, "temperature", 0.7),
        ("topP", 0.9, "top_p", 0.9),
        ("topK", 40, "top_k", 40),
        ("topK", -1, "top_k", -1),
        ("minP", 0.05, "min_p", 0.05),
        ("minTokens", 2, "min_tokens", 2),
        ("stop", "END", "stop", ["END"]),
        ("stop", ["a", "b"], "stop", ["a", "b"]),
        ("stopTokenIds", [2, 7], "stop_token_ids", [2, 7]),
        ("seed", 3, "seed", 3),
        ("seed", 3.0, "seed", 3),
        ("frequencyPenalty", -0.5, "frequency_penalty", -0.5),
        ("presencePenalty", 1, "presence_penalty", 1),
        ("repetitionPenalty", 1.1, "repetition_penalty", 1.1),
        ("logitBias", {"5": -100}, "logit_bias", {"5": -100}),
        ("ignoreEos", True, "ignore_eos", True),
        ("reasoningEffort", "low", "reasoning_effort", "low"),
        ("chatTemplateKwargs", {"x": 1}, "chat_template_kwargs", {"x": 1}),
        ("top_p", 0.9, "top_p", 0.9),
        ("repetition_penalty", 1.1, "repetition_penalty", 1.1),
    ],
)
def test_a_known_key_becomes_its_field(key: str, value: Any, field: str, sent: Any) -> None:
    assert parse_sampling({key: value}).fields == {field: sent}


@pytest.mark.parametrize("key", ["maxTokens", "max_tokens", "maxCompletionTokens"])
def test_the_length_stands_apart_from_the_fields(key: str) -> None:
    sampling = parse_sampling({key: 9})
    assert (sampling.max_tokens, sampling.fields) == (9, {})


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ([], "sampling must be an object, not a list"),
        ({"temperature": "hot"}, "sampling.temperature must be a number, not a string"),
        ({"temperature": True}, "sampling.temperature must be a number, not a boolean"),
        ({"temperature": 2.5}, "sampling.temperature is 2.5; it must be from 0 to 2"),
        ({"topP": 0}, "sampling.topP is 0; it must be above 0 up to 1"),
        ({"top_p": 0}, "sampling.top_p is 0; it must be above 0 up to 1"),
        ({"maxTokens": 0}, "sampling.maxTokens is 0; it must be at least 1"),
        ({"maxTokens": 1.5}, "sampling.maxTokens must be a whole number, not 1.5"),
        ({"seed": 2**63}, "sampling.seed is out of range; it must be at most 9223372036854775807"),
        ({"stop": [""]}, "sampling.stop holds an empty string"),
        ({"stop": [1]}, "sampling.stop must hold strings, not a number"),
        ({"stop": list("abcde")}, "sampling.stop has 5 strings; the engine takes at most 4"),
        ({"n": 2}, "sampling.n is 2; one answer a prompt is all that this worker gives"),
        ({"logprobs": True}, "sampling.logprobs is not done by this worker; leave it out"),
        ({"topLogprobs": 3}, "sampling.topLogprobs is not done by this worker; leave it out"),
        ({"minTokens": 9, "maxTokens": 3}, "sampling.minTokens is 9, above maxTokens 3"),
        ({"toolChoice": {}}, "sampling.toolChoice must be auto, none, required or an object"),
        ({"toolChoice": 5}, "sampling.toolChoice must be auto, none, required or an object"),
        ({"toolChoice": {"type": "allowed_tools"}}, "or an object that names a tool"),
        ({"parallelToolCalls": "no"}, "sampling.parallelToolCalls must be true or false"),
        ({"chatTemplateKwargs": {"chat_template": ""}}, "can't be set by a prompt"),
        ({"logitBias": {"the": 1}}, "'the', which is no token number"),
        ({"reasoningEffort": "heroic"}, "sampling.reasoningEffort is 'heroic'; it must be one of"),
        ({"responseFormat": "yaml"}, "sampling.responseFormat.type is 'yaml'"),
        ({"responseFormat": {"type": "json_schema"}}, "needs an object `schema`"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_by_name(sampling: Any, said: str) -> None:
    assert said in refusal(sampling)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["temperature", "topP", "maxTokens", "seed", "repetitionPenalty"])
def test_no_number_without_a_value_gets_through(key: str, value: float) -> None:
    refusal({key: value})


@pytest.mark.parametrize(
    "harmless",
    [{"n": 1}, {"logprobs": False}, {"topLogprobs": 0}, {"toolChoice": "auto"}, {"user": "me"},
     {"temperature": None}, {"stop": []}, {"stream": False}, {"parallelToolCalls": True}],
)  # fmt: skip
def test_keys_that_ask_for_nothing_leave_no_field(harmless: dict[str, Any]) -> None:
    sampling = parse_sampling(harmless)
    assert (sampling.fields, sampling.unknown) == ({}, ())


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        ("auto", Choice("auto")),
        ("none", Choice("none")),
        ("required", Choice("required")),
        ("any", Choice("required")),
        ("look_up", Choice("tool", "look_up")),
        ({"type": "auto"}, Choice("auto")),
        ({"type": "any"}, Choice("required")),
        ({"type": "tool", "name": "a"}, Choice("tool", "a")),
        ({"type": "tool", "toolName": "a"}, Choice("tool", "a")),
        ({"type": "function", "name": "a"}, Choice("tool", "a")),
        ({"type": "function", "function": {"name": "a"}}, Choice("tool", "a")),
        ({"name": "a"}, Choice("tool", "a")),
    ],
)
def test_the_choice_of_a_tool_comes_in_several_forms(asked: Any, choice: Choice) -> None:
    sampling = parse_sampling({"toolChoice": asked, "parallelToolCalls": False})
    assert (sampling.choice, sampling.parallel_tool_calls) == (choice, False)
    assert sampling.fields == {}


def test_unknown_keys_are_returned_as_they_were_spelled() -> None:
    sampling = parse_sampling({"temperature": 1, "topA": 0.2, "mirostat": 2})
    assert sampling.unknown == ("topA", "mirostat")


SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("json_object", {"type": "json_object"}),
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "json"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": SCHEMA}},
            {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}},
        ),
        (
            {"type": "json_schema", "jsonSchema": {"schema": SCHEMA}},
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        ),
        (
            {"type": "json", "schema": SCHEMA},
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        ),
    ],
)
def test_a_response_format_comes_in_several_forms(asked: Any, sent: Any) -> None:
    assert parse_sampling({"responseFormat": asked}).fields == {"response_format": sent}


def test_plain_text_is_no_response_format() -> None:
    assert parse_sampling({"responseFormat": {"type": "text"}}).fields == {}


KEYS = st.sampled_from(
    "temperature topP topK minP maxTokens stop seed logitBias responseFormat n logprobs "
    "reasoningEffort chatTemplateKwargs toolChoice stopTokenIds badWords".split()
)


@given(st.dictionaries(KEYS | st.text(max_size=5), JSON, max_size=4))
def test_any_value_is_read_or_refused(sampling: dict[str, Any]) -> None:
    try:
        fields = parse_sampling(sampling).fields
    except TurnError:
        return
    assert all(name.islower() for name in fields)
    msgspec.json.encode({k: v for k, v in fields.items() if k != "chat_template_kwargs"})
