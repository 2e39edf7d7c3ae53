"""Lines that are made when it is their turn: order, what they cost, and when they can't be made."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hum_workers.thrum.pacer import Outbox, Pacer
from tests.thrum.conftest import Clock, tone

LOST = tone("error", code="humd_lost")


@pytest.fixture
def pacer(clock: Clock) -> Pacer:
    return Pacer(0, 256, clock, "vllm-worker")


def outbox(pacer: Pacer, sid: str = "s") -> Outbox:
    return pacer.outbox(sid, lambda: None)


def chis(pacer: Pacer) -> list[str]:
    return [json.loads(line).get("delta", json.loads(line)["chi"]) for line in _lines(pacer)]


def _lines(pacer: Pacer) -> list[bytes]:
    return pacer.take().splitlines()


def made(*named: str) -> Callable[[], bytes | None]:
    return lambda: b"".join(json.dumps({"chi": name}).encode() + b"\n" for name in named)


def test_lines_are_made_in_their_order_and_only_when_it_is_their_turn(pacer: Pacer) -> None:
    turn = outbox(pacer)
    asked: list[str] = []

    def make() -> bytes | None:
        asked.append("now")
        return made("hello", "tool-call")()

    turn.delta("text", 0, "a")
    turn.late(make, 100, 2, LOST)
    turn.delta("text", 0, "b")
    turn.end(tone("finish"))
    assert asked == []
    assert pacer.held == 102
    assert chis(pacer) == ["a", "hello", "tool-call", "b", "finish"]
    assert (asked, pacer.held) == (["now"], 0)


def test_without_lines_only_another_ending_comes(pacer: Pacer) -> None:
    turn = outbox(pacer)
    turn.delta("text", 0, "abc")
    turn.late(lambda: None, 50, 1, LOST)
    turn.tone(tone("chunk"))
    turn.delta("text", 1, "lost")
    turn.end(tone("finish"))
    first, ending = [json.loads(line) for line in _lines(pacer)]
    assert first["delta"] == "abc"
    assert (ending["chi"], ending["code"]) == ("error", "humd_lost")
    assert ending["ext"]["vllm-worker"]["chars"] == 3
    assert ending["rid"]
    assert (pacer.held, pacer.wait()) == (0, None)
    pacer.echoed(ending["rid"])
    assert pacer.idle


def test_without_lines_a_turn_that_has_not_ended_may_only_end(pacer: Pacer) -> None:
    turn, other = outbox(pacer), outbox(pacer, "other")
    turn.late(lambda: None, 50, 1, LOST)
    other.tone(tone("pulse"))
    assert chis(pacer) == ["pulse"], "others are not held up"
    turn.tone(tone("chunk"))
    turn.delta("text", 0, "lost")
    turn.late(made("tool-call"), 10, 1, LOST)
    assert chis(pacer) == []
    turn.end(tone("error"))
    assert chis(pacer) == ["error"]
    following = outbox(pacer)
    following.tone(tone())
    assert chis(pacer) == ["session-ready"]


def test_the_next_turn_of_the_sid_speaks_after_the_other_ending(pacer: Pacer) -> None:
    turn, following = outbox(pacer), outbox(pacer)
    turn.late(lambda: None, 50, 1, LOST)
    turn.end(tone("finish"))
    following.tone(tone())
    assert chis(pacer) == ["error", "session-ready"]


def test_lines_cost_as_many_tones_as_they_say(clock: Clock) -> None:
    pacer = Pacer(10, 5, clock, "vllm-worker")
    turn = outbox(pacer)
    turn.tone(tone())
    turn.late(made("a", "b", "c", "d"), 10, 4, LOST)
    turn.end(tone("finish"))
    assert chis(pacer) == ["session-ready", "a", "b", "c", "d"]
    assert chis(pacer) == []
    assert pacer.sent == 5
    clock.now += 0.1
    assert chis(pacer) == ["finish"]


def test_a_debt_is_paid_before_the_next_tone(clock: Clock) -> None:
    pacer = Pacer(10, 2, clock, "vllm-worker")
    turn = outbox(pacer)
    turn.late(made(*"abcd"), 10, 4, LOST)
    turn.end(tone("finish"))
    assert chis(pacer) == list("abcd")
    for pause in (0, 0.2):
        clock.now += pause
        assert chis(pacer) == []
    clock.now += 0.11
    assert chis(pacer) == ["finish"]


def test_discard_drops_what_was_not_made(pacer: Pacer) -> None:
    turn = outbox(pacer)
    turn.late(made("tool-call"), 10, 1, LOST)
    turn.discard()
    turn.end(tone("error"))
    assert chis(pacer) == ["error"]
    assert pacer.held == 0


def test_lines_count_against_what_a_turn_may_hold(clock: Clock) -> None:
    over: list[Any] = []
    pacer = Pacer(0, 256, clock, "vllm-worker", turn_limit=100)
    turn = pacer.outbox("s", lambda: over.append(1))
    turn.late(made("tool-call"), 101, 1, LOST)
    assert over == [1]
