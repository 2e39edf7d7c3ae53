"""One turn's outbox behind a pacer without a rate: order, merging, the ending, what is held."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hum_workers.thrum.outbox import MERGED
from hum_workers.thrum.pacer import Outbox, Pacer
from tests.thrum.conftest import Clock, tone


@pytest.fixture
def pacer(clock: Clock) -> Pacer:
    return Pacer(0, 256, clock, "vllm-worker")


@pytest.fixture
def outbox(pacer: Pacer) -> Outbox:
    return pacer.outbox("s", lambda: None)


def taken(pacer: Pacer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in pacer.take().splitlines()]


def deltas(pacer: Pacer) -> list[str]:
    return [tone["delta"] for tone in taken(pacer) if "delta" in tone]


def test_tones_of_a_turn_keep_their_order(pacer: Pacer, outbox: Outbox) -> None:
    outbox.tone(tone())
    outbox.tone(tone("chunk", chunkType="text_start", blockIdx=0))
    outbox.delta("text", 0, "a")
    outbox.tone(tone("chunk", chunkType="content_block_stop", blockIdx=0))
    outbox.end(tone("finish"))
    assert [t.get("chunkType", t["chi"]) for t in taken(pacer)] == [
        "session-ready",
        "text_start",
        "text_delta",
        "content_block_stop",
        "finish",
    ]


def test_text_that_waits_becomes_one_delta(pacer: Pacer, outbox: Outbox) -> None:
    for text in ("Gr", "üße", " ", "😀"):
        outbox.delta("text", 0, text)
    (delta,) = taken(pacer)
    assert delta["delta"] == delta["part"]["text"] == "Grüße 😀"


def test_text_is_merged_with_its_own_block_and_kind_only(pacer: Pacer, outbox: Outbox) -> None:
    for kind, block, text in [("reasoning", 0, "a"), ("text", 0, "b"), ("text", 1, "c")]:
        outbox.delta(kind, block, text)  # type: ignore[arg-type]
        outbox.delta(kind, block, text)  # type: ignore[arg-type]
    outbox.delta("text", 0, "d")
    assert deltas(pacer) == ["aa", "bb", "cc", "d"]


def test_text_does_not_pass_a_control_tone(pacer: Pacer, outbox: Outbox) -> None:
    outbox.delta("text", 0, "a")
    outbox.tone(tone("pulse"))
    outbox.delta("text", 0, "b")
    assert [t.get("delta", t["chi"]) for t in taken(pacer)] == ["a", "pulse", "b"]


def test_text_after_a_take_starts_a_new_delta(pacer: Pacer, outbox: Outbox) -> None:
    outbox.delta("text", 0, "a")
    assert deltas(pacer) == ["a"]
    outbox.tone(tone("pulse"))
    outbox.delta("text", 0, "b")
    assert [t.get("delta", t["chi"]) for t in taken(pacer)] == ["pulse", "b"]


def test_an_empty_text_is_nothing(pacer: Pacer, outbox: Outbox) -> None:
    outbox.delta("text", 0, "")
    assert pacer.wait() is None
    assert pacer.take() == b""


def test_lone_surrogates_do_not_reach_the_wire(pacer: Pacer, outbox: Outbox) -> None:
    outbox.delta("text", 0, "a\ud83d")
    outbox.end(tone("finish"))
    delta, finish = taken(pacer)
    assert delta["delta"] == "a\ufffd"
    assert finish["ext"]["vllm-worker"]["chars"] == 2


def test_the_ending_counts_code_points_of_text_and_carries_a_rid(
    pacer: Pacer, outbox: Outbox
) -> None:
    outbox.delta("reasoning", 0, "hmmm")
    outbox.delta("text", 1, "Grüße 😀")
    outbox.end(tone("finish", finishReason="stop", rid="theirs", ext={"x": {"y": 1}}))
    ending = taken(pacer)[-1]
    assert ending.pop("rid") not in ("", "theirs")
    assert ending == tone(
        "finish", finishReason="stop", ext={"x": {"y": 1}, "vllm-worker": {"chars": 7}}
    )


def test_what_the_turn_put_under_its_own_name_is_kept(pacer: Pacer, outbox: Outbox) -> None:
    outbox.end(tone("finish", ext={"vllm-worker": {"steps": 2, "chars": 99}, "z": 1}))
    assert taken(pacer)[0]["ext"] == {"z": 1, "vllm-worker": {"steps": 2, "chars": 0}}


def test_after_the_ending_nothing_is_taken_and_the_first_ending_counts(
    pacer: Pacer, outbox: Outbox
) -> None:
    outbox.end(tone("finish"))
    outbox.end(tone("error"))
    outbox.tone(tone())
    outbox.delta("text", 0, "a")
    assert [t["chi"] for t in taken(pacer)] == ["finish"]
    outbox.end(tone("error"))
    assert pacer.wait() is None


def test_an_ending_that_cant_be_written_leaves_the_turn_open(pacer: Pacer, outbox: Outbox) -> None:
    with pytest.raises(ValueError, match="can't be written"):
        outbox.end(tone("finish", usage=object()))
    outbox.end(tone("error"))
    assert [t["chi"] for t in taken(pacer)] == ["error"]


def test_a_tone_that_cant_be_written_leaves_the_turn_as_it_was(
    pacer: Pacer, outbox: Outbox
) -> None:
    outbox.delta("text", 0, "a")
    with pytest.raises(ValueError, match="can't be written"):
        outbox.tone(tone(args=object()))
    outbox.delta("text", 0, "b")
    assert deltas(pacer) == ["ab"]


def test_discard_drops_text_and_tones_and_chars_says_what_went(
    pacer: Pacer, outbox: Outbox
) -> None:
    outbox.delta("text", 0, "abc")
    assert deltas(pacer) == ["abc"]
    outbox.delta("text", 0, "lost")
    outbox.tone(tone("pulse"))
    outbox.discard()
    assert pacer.held == 0
    assert pacer.wait() is None
    outbox.delta("text", 0, "de")
    outbox.end(tone("error"))
    assert [t.get("delta", t["chi"]) for t in taken(pacer)] == ["de", "error"]


def test_discard_keeps_an_ending_that_waits(pacer: Pacer, outbox: Outbox) -> None:
    outbox.delta("text", 0, "lost")
    outbox.end(tone("finish"))
    outbox.discard()
    (finish,) = taken(pacer)
    assert finish["ext"]["vllm-worker"]["chars"] == 0
    outbox.discard()
    assert pacer.idle is False
    pacer.echoed(finish["rid"])
    assert pacer.idle


def test_a_long_text_is_cut_into_lines_that_asyncio_readers_take(
    pacer: Pacer, outbox: Outbox
) -> None:
    text = "".join(f"{n:07d} " for n in range(10_000))
    outbox.delta("text", 0, text[:50_000])
    for at in range(50_000, len(text), 10):
        outbox.delta("text", 0, text[at : at + 10])
    lines = pacer.take().splitlines()
    assert "".join(json.loads(line)["delta"] for line in lines) == text
    assert max(len(line) for line in lines) < 65_536
    assert len(lines) <= len(text) / MERGED * 1.5
    assert pacer.held == 0


def test_one_text_longer_than_a_delta_is_cut_too(pacer: Pacer, outbox: Outbox) -> None:
    outbox.delta("text", 0, "x" * (2 * MERGED + 1))
    assert [len(text) for text in deltas(pacer)] == [MERGED, MERGED, 1]


def test_held_bytes_are_utf8_and_come_back_to_nothing(pacer: Pacer, outbox: Outbox) -> None:
    outbox.delta("text", 0, "abc")
    outbox.delta("text", 0, "Grüße 😀")
    assert pacer.held == 3 + 12
    outbox.tone(tone("pulse"))
    outbox.end(tone("finish"))
    pacer.take()
    assert pacer.held == 0


def test_a_turn_over_its_limit_is_told_once_and_keeps_only_its_error(clock: Clock) -> None:
    pacer = Pacer(0, 256, clock, "h", turn_limit=10)
    told = []

    def overflow() -> None:
        told.append(1)
        turn.discard()
        turn.end(tone("error", code="humd_lost"))

    turn = pacer.outbox("s", overflow)
    turn.delta("text", 0, "1234567890")
    assert told == []
    turn.delta("text", 0, "1")
    turn.delta("text", 0, "more")
    turn.tone(tone())
    assert told == [1]
    assert pacer.held == 0
    assert [t["chi"] for t in taken(pacer)] == ["error"]


def test_after_an_overflow_the_turn_takes_nothing_even_before_it_discards(clock: Clock) -> None:
    told: list[str] = []
    pacer = Pacer(0, 256, clock, "h", turn_limit=4)
    outbox = pacer.outbox("s", lambda: told.append("s"))
    for _ in range(3):
        outbox.delta("text", 0, "12345")
        outbox.tone(tone())
    assert (told, pacer.held) == (["s"], 5)


def test_the_turn_that_takes_all_turns_over_the_total_is_told(clock: Clock) -> None:
    told: list[str] = []
    pacer = Pacer(0, 256, clock, "h", turn_limit=100, total_limit=10)
    first, second = (pacer.outbox(sid, lambda sid=sid: told.append(sid)) for sid in "ab")  # type: ignore[misc]
    first.delta("text", 0, "123456")
    second.delta("text", 0, "12345")
    assert told == ["b"]
    second.discard()
    first.delta("text", 0, "1234")
    assert told == ["b"]
