"""The engine's stream as events of a turn. The .sse files were recorded from vLLM 0.32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.errors import ErrorCode, one_line
from hum_workers.frames import Mmm, pack
from hum_workers.tender.engine_events import ChatStream, Event, refusal

FIXTURES = Path(__file__).parent / "fixtures"
COUNTED = (FIXTURES / "vllm_stream_counted.sse").read_bytes()
STOPPED = (FIXTURES / "vllm_stream_stopped.sse").read_bytes()
DONE = b"data: [DONE]\n\n"
BROKEN = ErrorCode.STREAM_BROKEN
FAILED = ErrorCode.ENGINE_ERROR


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    event = {"id": "chatcmpl-1", "choices": [choice], **more}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def usage(prompt: int, output: int, cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": details,
    }


def count(prompt: int, output: int, cached: int | None = None) -> bytes:
    event = {"choices": [], "usage": usage(prompt, output, cached)}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def play(*reads: bytes, eof: bool = True) -> list[Event]:
    """Feeds the reads and the end; checks that exactly the last event ends the turn."""
    stream = ChatStream()
    events = [event for read in reads for event in stream.feed(read)]
    if eof:
        events += stream.eof()
        assert stream.done
        assert [kind for kind, _ in events if kind in (Mmm.FINISH, Mmm.ERROR)] == [events[-1][0]]
        pack("mmm", [[1, kind, data] for kind, data in events])
    return events


def text(events: list[Event], kind: Mmm = Mmm.TEXT) -> str:
    return "".join(data for found, data in events if found is kind)


def error(events: list[Event]) -> tuple[ErrorCode, str]:
    kind, data = events[-1]
    assert kind is Mmm.ERROR
    return data["code"], data["message"]


def test_a_recorded_stream_gives_its_text_reason_and_usage() -> None:
    assert play(COUNTED) == [
        (Mmm.TEXT, "Mali! How"),
        (Mmm.FINISH, {"reason": "length", "usage": {"input": 32, "output": 4, "cached": 0}}),
    ]


def test_a_recorded_stream_of_llama_server_is_counted_before_it_ends() -> None:
    """Recorded from llama-server 11434, with the fields that its cells ask for."""
    recorded = (FIXTURES / "llama_stream_counted.sse").read_bytes()
    stream, usages, events = ChatStream(), [], []
    for event in recorded.split(b"\n\n")[:-1]:
        events += stream.feed(event + b"\n\n")
        usages.append(stream.usage)
    assert [kind for kind, _ in events] == [Mmm.TEXT, Mmm.TEXT, Mmm.TEXT, Mmm.FINISH]
    assert events[-1][1]["usage"] == usages[-1]
    outputs = [usage["output"] for usage in usages if usage]
    assert outputs == sorted(outputs)
    assert {1, 2, 3} <= set(outputs)
    assert len({usage["input"] + usage["cached"] for usage in usages[-4:] if usage}) == 1


def test_a_tool_call_of_llama_server_comes_in_pieces() -> None:
    stream = ChatStream()
    events = stream.feed((FIXTURES / "llama_stream_tool.sse").read_bytes())
    calls = [data for kind, data in events if kind is Mmm.TOOL]
    assert [call["name"] for call in calls if call["name"]] == ["get_weather"]
    assert json.loads("".join(call["arguments"] for call in calls)) == {"city": "Paris"}
    assert (events[-1][0], events[-1][1]["reason"]) == (Mmm.FINISH, "tool_calls")
    assert events[-1][1]["usage"] == {"input": 272, "output": 31, "cached": 0}


def test_a_recorded_stream_without_usage_gives_none() -> None:
    assert play(STOPPED) == [
        (Mmm.TEXT, 'The answer to this classic question is "Pa'),
        (Mmm.FINISH, {"reason": "stop", "usage": None}),
    ]


@given(st.lists(st.integers(0, len(COUNTED)), max_size=8))
def test_cuts_between_reads_lose_and_reorder_nothing(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(COUNTED)]
    reads = [COUNTED[a:b] for a, b in zip(places, places[1:], strict=False)]
    assert text(play(*reads)) == "Mali! How"


def test_text_of_one_read_is_one_event() -> None:
    read = b"".join(chunk({"content": f"{n} "}) for n in range(5))
    assert play(read, eof=False) == [(Mmm.TEXT, "0 1 2 3 4 ")]


def test_cached_tokens_are_counted_apart_from_the_input() -> None:
    events = play(chunk({"content": "x"}, "stop"), count(50, 3, cached=32), DONE)
    assert events[-1][1]["usage"] == {"input": 18, "output": 3, "cached": 32}


def test_senseless_counts_are_held_in_bounds() -> None:
    events = play(chunk({}, "stop"), count(-5, 10**30, cached=3), DONE)
    assert events[-1][1]["usage"] == {"input": 0, "output": 2**53, "cached": 3}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_apart_from_text_in_order(name: str) -> None:
    thought = chunk({name: "a"}) + chunk({name: "b"}) + chunk({"content": "c"})
    assert play(thought + chunk({name: "d"}), eof=False) == [
        (Mmm.REASONING, "ab"),
        (Mmm.TEXT, "c"),
        (Mmm.REASONING, "d"),
    ]


def test_reasoning_under_both_names_comes_once() -> None:
    events = play(chunk({"reasoning": "a", "reasoning_content": "a"}), eof=False)
    assert events == [(Mmm.REASONING, "a")]


def test_tool_calls_come_in_pieces_after_the_text_before_them() -> None:
    head = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look"}}
    piece = {"index": 0, "function": {"arguments": '{"a":'}}
    other = {"index": 1, "id": "c2", "function": {"name": "go", "arguments": ""}}
    read = chunk({"content": "I see"}) + chunk({"content": None, "tool_calls": [head]})
    read += chunk({"tool_calls": [piece, other]}) + chunk({}, "tool_calls") + DONE
    assert play(read) == [
        (Mmm.TEXT, "I see"),
        (Mmm.TOOL, {"index": 0, "id": "c1", "name": "look", "arguments": ""}),
        (Mmm.TOOL, {"index": 0, "id": "", "name": "", "arguments": '{"a":'}),
        (Mmm.TOOL, {"index": 1, "id": "c2", "name": "go", "arguments": ""}),
        (Mmm.FINISH, {"reason": "tool_calls", "usage": None}),
    ]


def test_a_finish_waits_for_the_usage_behind_it() -> None:
    stream = ChatStream()
    assert stream.feed(chunk({"content": "x"}, "stop", usage=usage(5, 1))) == [(Mmm.TEXT, "x")]
    assert stream.feed(count(5, 1, cached=4)) == [
        (Mmm.FINISH, {"reason": "stop", "usage": {"input": 1, "output": 1, "cached": 4}})
    ]
    assert stream.feed(DONE) == []
    assert stream.eof() == []


def test_an_end_after_a_finish_reason_is_a_finish() -> None:
    kind, data = play(chunk({"content": "x"}, "stop"))[-1]
    assert (kind, data["reason"]) == (Mmm.FINISH, "stop")


@pytest.mark.parametrize("end", [DONE, b"", b'data: {"choi'])
def test_an_end_without_a_finish_reason_is_a_broken_stream(end: bytes) -> None:
    events = play(chunk({"content": "x"}, usage=usage(5, 1)), end)
    assert error(events) == (BROKEN, "the engine's stream ended without a finish reason")
    assert events[-1][1]["usage"] == {"input": 5, "output": 1, "cached": 0}
    assert text(events) == "x"


def test_an_abort_is_no_success() -> None:
    events = play(chunk({"content": "x"}) + chunk({}, "abort") + DONE)
    assert error(events) == (BROKEN, "the engine aborted the request")


def test_the_finish_reason_error_is_an_engine_error() -> None:
    assert error(play(chunk({}, "error") + DONE))[0] is FAILED


def test_an_error_event_ends_the_turn_with_the_engines_words() -> None:
    told = {"error": {"message": "EngineCore\n died", "type": "InternalServerError", "code": 500}}
    read = chunk({"content": "x"}) + b"data: " + json.dumps(told).encode() + b"\n\n" + DONE
    events = play(read)
    assert events[0] == (Mmm.TEXT, "x")
    assert error(events) == (FAILED, "EngineCore died")


@pytest.mark.parametrize("value", ["plain words", {"code": 500}, {"message": 5}, ["x"]])
def test_an_error_event_of_any_shape_is_an_error(value: Any) -> None:
    code, message = error(play(b"data: " + json.dumps({"error": value}).encode() + b"\n\n"))
    assert code is FAILED
    assert message


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b"{oops", "not JSON: {oops"),
        (b"\x00\xff\xfe", "not JSON"),
        (b"[1]", "another shape: Expected `object`, got `array`"),
        (b'{"choices":5}', "Expected `array | null`, got `int`"),
        (b'{"choices":[{"delta":{"content":5}}]}', "`$.choices[0].delta.content`"),
        (b'{"choices":[{"delta":{},"finish_reason":3}]}', "finish_reason"),
        (b'{"choices":[],"usage":{"prompt_tokens":"many"}}', "prompt_tokens"),
        (b'{"choices":[{"delta":{"tool_calls":[{"index":1e30}]}}]}', "tool_calls[0].index"),
        (b'{"a":' * 5000, "not JSON"),
    ],
)
def test_an_event_that_is_none_is_one_error_that_says_what(event: bytes, words: str) -> None:
    events = play(chunk({"content": "before"}) + b"data: " + event + b"\n\n" + chunk({}, "stop"))
    assert text(events) == "before"
    code, message = error(events)
    assert code is FAILED
    assert words in message
    assert len(message) < 300


def test_unknown_fields_and_nulls_are_ignored() -> None:
    read = chunk({"content": None, "refusal": None, "x": [1]}, service_tier="auto", usage=None)
    read += b'data: {}\n\ndata: {"choices":null}\n\ndata: {"choices":[{"index":0}]}\n\ndata: \n\n'
    assert play(read + chunk({"content": "ok"}, "stop") + DONE)[0] == (Mmm.TEXT, "ok")


def test_nan_in_a_field_that_nobody_reads_does_not_matter() -> None:
    read = b'data: {"choices":[{"delta":{"content":"a"},"logprobs":[NaN,-Infinity]}]}\n\n'
    assert play(read, eof=False) == [(Mmm.TEXT, "a")]


def escaped(content: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"' + content.encode() + b'"}}]}\n\n'


def test_an_emoji_in_two_escaped_halves_of_two_events_comes_out_whole() -> None:
    high, low = escaped(r"a\ud83d"), escaped(r"\ude00b")
    assert play(high + low, eof=False) == [(Mmm.TEXT, "a😀b")]
    assert play(high, low, eof=False) == [(Mmm.TEXT, "a"), (Mmm.TEXT, "😀b")]
    assert play(high, b": keep-alive\n\n", low, eof=False) == [(Mmm.TEXT, "a"), (Mmm.TEXT, "😀b")]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([escaped(r"a\ud83d"), escaped("b")], "a\ufffdb"),
        ([escaped(r"a\ude00"), escaped("b")], "a\ufffdb"),
        ([escaped(r"\ud83d\ud83d"), escaped(r"\ude00")], "\ufffd😀"),
        ([escaped(r"a\ud83d")], "a\ufffd"),
        ([escaped(r"\ud83d") + chunk({"reasoning": "r"})], "\ufffd"),
        ([escaped(r"\ud83d"), chunk({"reasoning": "r"})], "\ufffd"),
        ([escaped(r"\ud83d\ude00") + escaped("é")], "😀é"),
    ],
)
def test_a_lone_half_becomes_a_replacement_character(reads: list[bytes], expected: str) -> None:
    assert text(play(*reads, chunk({}, "stop"), DONE)) == expected


def test_halves_in_a_tool_call_do_not_break_the_frames() -> None:
    event = chunk({"tool_calls": [{"index": 0, "function": {"arguments": "\ud83d"}}]})
    assert play(event + chunk({}, "stop"))[0][1]["arguments"] == "\ufffd"


def test_stray_bytes_within_an_event_become_replacement_characters() -> None:
    read = chunk({"content": "a?b"}).replace(b"?", b"\xf0\x9f")
    assert text(play(read, eof=False)) == "a\ufffdb"


def test_an_event_over_the_limit_is_one_error() -> None:
    stream = ChatStream(limit=1000)
    assert stream.feed(chunk({"content": "a"}))[0] == (Mmm.TEXT, "a")
    assert error(stream.feed(b"data: " + b"x" * 2000)) == (
        FAILED,
        "the engine sent one event of more than 1000 bytes",
    )
    assert stream.done


def test_a_stream_cut_from_outside_keeps_its_usage() -> None:
    stream = ChatStream()
    stream.feed(chunk({"content": "a"}, usage=usage(7, 1)))
    ((kind, data),) = stream.fail(ErrorCode.CELL_DIED, "gone")
    assert kind is Mmm.ERROR
    assert data == {
        "code": ErrorCode.CELL_DIED,
        "message": "gone",
        "usage": {"input": 7, "output": 1, "cached": 0},
    }
    assert stream.fail(ErrorCode.CELL_DIED, "again") == []


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (
            400,
            b'{"error":{"message":"1 error:\\n  too long","type":"BadRequestError","code":400}}',
            ErrorCode.BAD_PROMPT,
            "1 error: too long",
        ),
        (
            404,
            b'{"error":{"message":"The model `x` does not exist.","code":404}}',
            FAILED,
            "the engine answered 404: The model `x` does not exist.",
        ),
        (404, b'{"detail":"Not Found"}', FAILED, "the engine answered 404: Not Found"),
        (401, b'{"error":"Unauthorized"}', FAILED, "the engine answered 401: Unauthorized"),
        (
            503,
            b'{"error":{"message":"full"}}',
            ErrorCode.NO_CAPACITY,
            "the engine answered 503: full",
        ),
        (429, b"slow down", ErrorCode.NO_CAPACITY, "the engine answered 429: slow down"),
        (500, b"", FAILED, "the engine answered 500"),
        (500, b"\xff\x00", FAILED, "the engine answered 500: \ufffd"),
        (500, b'"\\ud83d"', FAILED, "the engine answered 500: \ufffd"),
        (400, b"", ErrorCode.BAD_PROMPT, "the engine answered 400"),
        (400, b"[" * 5000, ErrorCode.BAD_PROMPT, "[" * 399 + "…"),
    ],
)
def test_a_refusal_is_the_engines_own_message(
    status: int, body: bytes, code: ErrorCode, message: str
) -> None:
    assert refusal(status, body) == (code, message)


def test_one_line_has_no_control_characters() -> None:
    assert one_line("a\x1b[31m\r\n\tb\u2028c") == "a [31m b c"
