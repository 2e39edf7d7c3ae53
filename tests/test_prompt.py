"""Prompt tones in every form of thrum section 5, and what is wrong with the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.turns.prompt import is_bare, parse_prompt
from tests.test_sampling import JSON

OPENAI_SERVER: dict[str, Any] = {
    "chi": "prompt", "content": "User: hi\n\nAssistant: yo\n\nUser: again", "cwd": "/home/u",
    "hive": "openai-server", "modelId": "m", "provided": ["session"],
    "sampling": {"maxTokens": 9, "seed": 3, "stop": ["x"], "temperature": 0.2},
    "sid": "oai-c22b5f9178342609", "systemPrompt": "be brief",
}  # fmt: skip


def messages(**tone: Any) -> list[dict[str, Any]]:
    return parse_prompt({"sid": "s", **tone}).messages


def refusal(**tone: Any) -> str:
    with pytest.raises(TurnError) as caught:
        parse_prompt({"sid": "s", **tone})
    assert caught.value.code is ErrorCode.BAD_PROMPT
    return caught.value.message


def test_a_prompt_of_openai_server_is_one_user_message() -> None:
    prompt = parse_prompt(OPENAI_SERVER)
    assert (prompt.sid, prompt.model) == ("oai-c22b5f9178342609", "m")
    assert prompt.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "User: hi\n\nAssistant: yo\n\nUser: again"},
    ]
    assert prompt.sampling.max_tokens == 9
    assert prompt.sampling.fields == {"seed": 3, "stop": ["x"], "temperature": 0.2}


def test_a_prompt_without_a_model_names_none() -> None:
    assert parse_prompt({"sid": "s", "text": "hi"}).model == ""
    assert parse_prompt({"sid": "s", "text": "hi", "modelId": None}).model == ""


def test_content_wins_over_text_and_messages_over_both() -> None:
    said = [{"role": "user", "content": "m"}]
    assert messages(content="c", text="t")[0]["content"] == "c"
    assert messages(content="", text="t")[0]["content"] == "t"
    assert messages(content="c", text="t", messages=said) == said
    assert messages(content="c", messages=[])[0]["content"] == "c"


def test_parts_of_text_stay_parts_and_a_single_one_becomes_a_string() -> None:
    one = [{"type": "text", "text": "a"}]
    assert messages(content=one) == [{"role": "user", "content": "a"}]
    assert messages(content=[*one, "b"])[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]


def test_a_conversation_keeps_what_the_templates_read_and_drops_the_rest() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = [
        {"role": "user", "content": "u", "name": "n", "cache_control": {}},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "4C"},
    ]
    assert messages(messages=said) == [
        {"role": "user", "content": "u", "name": "n"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4C", "tool_call_id": "1"},
    ]


def test_the_system_prompt_is_merged_into_one_that_is_there() -> None:
    said = [{"role": "system", "content": "b"}, {"role": "user", "content": "u"}]
    assert messages(systemPrompt="a", messages=said)[0] == {"role": "system", "content": "a\n\nb"}
    parts = [{"role": "system", "content": ["b", "c"]}, {"role": "user", "content": "u"}]
    merged = messages(systemPrompt="a", messages=parts)[0]["content"]
    assert [part["text"] for part in merged] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "tone",
    [{}, {"content": ""}, {"text": ""}, {"content": []}, {"systemPrompt": "only"},
     {"messages": [{"role": "user", "content": ""}]}, {"content": None, "messages": None}],
)  # fmt: skip
def test_a_prompt_without_text_is_refused(tone: dict[str, Any]) -> None:
    assert "no text" in refusal(**tone)


@pytest.mark.parametrize(
    ("tone", "said"),
    [
        ({"content": 5}, "content must be a string or a list of parts, not a number"),
        ({"content": [5]}, "content[0] must be a part object or a string, not a number"),
        ({"content": [{"type": "text", "text": 1}]}, "content[0].text must be a string"),
        ({"content": [{"type": "emoji"}]}, "type 'emoji'; text, images, audio and video are known"),
        ({"content": [{"type": "image_url"}]}, "content[0] has neither data nor a url"),
        ({"content": "x", "systemPrompt": []}, "systemPrompt must be a string, not a list"),
        ({"content": "x", "modelId": 7}, "modelId must be a string, not a number"),
        ({"messages": {}}, "messages must be a list, not an object"),
        ({"messages": ["x"]}, "messages[0] must be an object, not a string"),
        ({"messages": [{"role": "bee"}]}, "messages[0].role is 'bee'; it must be one of"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "no tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "name": 1}]}, "messages[0].name must be"),
        ({"content": "x", "sampling": 3}, "sampling must be an object, not a number"),
        ({"content": "x", "attachments": [{"kind": "pdf"}]}, "attachments[0] is a PDF"),
        ({"content": "x", "attachments": "no"}, "attachments must be a list, not a string"),
        ({"content": "x", "tools": {}}, "tools must be a list, not an object"),
    ],
)
def test_a_wrong_prompt_says_what_is_wrong(tone: dict[str, Any], said: str) -> None:
    assert said in refusal(**tone)


@pytest.mark.parametrize(
    "tone",
    [
        {"tools": []},
        {"tools": ["builtin", {"description": "nameless"}]},
        {"tools": [{"name": "a"}], "disallowedTools": ["a"]},
        {"tools": [{"name": "a"}], "allowedTools": []},
        {"foragerTools": [{"name": "humfs_read", "inputSchema": {}}]},
        {"attachments": []},
        {"dusk": 1, "ext": {}, "provided": ["fs"], "cwd": "/"},
    ],
)
def test_what_asks_for_nothing_is_no_obstacle(tone: dict[str, Any]) -> None:
    assert messages(content="x", **tone) == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("tone", "bare"),
    [
        ({}, True),
        ({"text": "", "content": ""}, True),
        ({"content": [], "text": None, "messages": [], "attachments": []}, True),
        ({"content": [{"type": "text", "text": ""}, ""]}, True),
        ({"text": "", "systemPrompt": "s", "tools": [{"name": "a"}], "cwd": "/"}, True),
        ({"text": "x"}, False),
        ({"content": [{"type": "text", "text": "x"}]}, False),
        ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, False),
        ({"messages": [{"role": "user", "content": ""}]}, False),
        ({"attachments": [{"kind": "image"}]}, False),
        ({"content": 5}, False),
    ],
)
def test_a_prompt_that_says_nothing_is_bare(tone: dict[str, Any], bare: bool) -> None:
    assert is_bare(tone) is bare


FIELDS = st.sampled_from(
    "sid modelId content text systemPrompt messages tools attachments sampling".split()
)


@settings(deadline=None)  # a loaded machine is no fault
@given(st.dictionaries(FIELDS, JSON, max_size=5))
def test_any_tone_is_read_or_refused(tone: dict[str, Any]) -> None:
    try:
        prompt = parse_prompt(tone)
    except TurnError:
        return
    assert any(message["content"] for message in prompt.messages)
