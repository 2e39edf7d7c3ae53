"""Reply: engine events become the tones of thrum section 6, in legal order, with one ending."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.frames import Mmm
from hum_workers.thrum.tones import Kind
from hum_workers.turns.reply import Reply, hum_usage


class Record:
    """An outbox that keeps what it is given."""

    def __init__(self) -> None:
        self.tones: list[dict[str, Any]] = []
        self.endings: list[Mapping[str, Any]] = []

    def tone(self, tone: Mapping[str, Any]) -> None:
        self.tones.append(dict(tone))

    def delta(self, kind: Kind, block: int, text: str) -> None:
        self.tones.append({"chunkType": f"{kind}_delta", "blockIdx": block, "delta": text})

    def end(self, tone: Mapping[str, Any]) -> None:
        self.endings.append(tone)

    def late(
        self, make: Callable[[], bytes | None], size: int, tones: int, otherwise: Mapping[str, Any]
    ) -> None:
        self.tones.append({"late": make(), "size": size, "tones": tones, "otherwise": otherwise})

    def discard(self) -> None:
        self.tones.clear()

    def blocks(self) -> list[tuple[str, int]]:
        return [(tone["chunkType"], tone["blockIdx"]) for tone in self.tones if "chunkType" in tone]


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def reply(record: Record) -> Reply:
    return Reply("s1", record)


def test_reasoning_and_text_are_separate_blocks_each_stopped_before_the_next(
    reply: Reply, record: Record
) -> None:
    reply.write(Mmm.REASONING, "hm")
    reply.write(Mmm.REASONING, "m")
    reply.write(Mmm.TEXT, "yes")
    reply.finish("stop", {"input": 1, "output": 2, "cached": 0})
    assert record.blocks() == [
        ("reasoning_start", 0),
        ("reasoning_delta", 0),
        ("reasoning_delta", 0),
        ("content_block_stop", 0),
        ("text_start", 1),
        ("text_delta", 1),
        ("content_block_stop", 1),
    ]


def test_session_ready_is_sent_once_a_turn(reply: Reply, record: Record) -> None:
    reply.announce("echo-1", "echo")
    reply.announce("echo-2", "echo")
    assert [tone["nestId"] for tone in record.tones] == ["echo-1"]


def test_session_ready_lists_the_tools_that_are_offered(reply: Reply, record: Record) -> None:
    reply.announce("echo-1", "echo", ["a", "b"])
    assert record.tones[0]["tools"] == [{"name": "a"}, {"name": "b"}]


def test_a_call_stands_behind_its_text_and_blocks_are_counted_on(
    reply: Reply, record: Record
) -> None:
    lost = TurnError(ErrorCode.HUMD_LOST, "gone", usage={"input": 1, "output": 2, "cached": 0})
    reply.write(Mmm.TEXT, "look")
    reply.stop_block()
    reply.call(lambda: b"call", 4, 1, lost)
    reply.tool({"chi": "chunk", "sid": "s1", "chunkType": "tool_executed"})
    reply.stop_block()
    assert reply.blocks == 1
    reply.write(Mmm.TEXT, "so")
    assert reply.blocks == 2
    kinds = [tone.get("chunkType", "late") for tone in record.tones]
    assert kinds == [
        "text_start",
        "text_delta",
        "content_block_stop",
        "late",
        "tool_executed",
        "text_start",
        "text_delta",
    ]
    assert record.tones[3]["otherwise"] == {
        "chi": "error",
        "sid": "s1",
        "code": "humd_lost",
        "subtype": "humd_lost",
        "message": "gone",
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }
    reply.finish("stop", None)
    reply.tool({"chi": "chunk", "sid": "s1", "chunkType": "tool_executed"})
    assert record.tones[-1]["chunkType"] == "content_block_stop", "nothing after the ending"


def test_only_the_first_ending_counts(reply: Reply, record: Record) -> None:
    reply.finish("cancelled", None)
    reply.fail(TurnError(ErrorCode.CELL_DIED, "too late"))
    reply.finish("stop", None)
    assert [(tone["chi"], tone["finishReason"]) for tone in record.endings] == [
        ("finish", "cancelled")
    ]


@pytest.mark.parametrize(
    ("engine", "hum"), [("stop", "stop"), ("length", "length"), ("tool_calls", "tool_use")]
)
def test_finish_reasons_are_hums(reply: Reply, record: Record, engine: str, hum: str) -> None:
    reply.finish(engine, None)
    assert record.endings[0]["finishReason"] == hum


def test_a_finish_reason_that_hum_does_not_know_is_an_engine_error(
    reply: Reply, record: Record
) -> None:
    reply.finish("repetition", {"input": 3, "output": 4, "cached": 0})
    ending = record.endings[0]
    assert (ending["chi"], ending["code"]) == ("error", "engine_error")
    assert ending["message"] == "the engine ended the answer with 'repetition'"
    assert ending["usage"] == {"input_tokens": 3, "output_tokens": 4}


def test_a_turn_without_text_has_no_block(reply: Reply, record: Record) -> None:
    reply.finish("stop", None)
    assert record.tones == []


def test_cached_input_is_reported_apart_and_only_where_there_is_some() -> None:
    assert hum_usage({"input": 5, "output": 6, "cached": 7}) == {
        "input_tokens": 5,
        "output_tokens": 6,
        "cache_read_input_tokens": 7,
    }
    assert "cache_read_input_tokens" not in hum_usage({"input": 5, "output": 6, "cached": 0})
