"""The books of a soak: a fault that nobody finds would make every run a good one."""

from __future__ import annotations

from typing import Any

import pytest

from bench.soak_audit import Audit, Turn
from bench.soak_plan import Ask, acts, asks
from hum_workers.fake_humd.wire import Tone


def audit(**kills: list[float]) -> Audit:
    it = Audit()
    it.bee_kills = kills.get("bee", [])
    it.humd_kills = kills.get("humd", [])
    ask = Ask("s", "left", "", "ab cd", 2, None, 0)
    it.turns["s"] = Turn(ask, 1.0)
    return it


def delta(text: str) -> Tone:
    return {"chi": "chunk", "sid": "s", "chunkType": "text_delta", "delta": text}


def end(rid: str = "r", chars: int = 5, **fields: Any) -> Tone:
    fields = fields or {"finishReason": "stop"}
    chi = "finish" if "finishReason" in fields else "error"
    return {"chi": chi, "sid": "s", "rid": rid, "ext": {"w": {"chars": chars}}, **fields}


WHOLE = [delta("ab "), delta("cd")]
DIED = end("q", code="bee_restarted")


@pytest.mark.parametrize(
    ("kills", "tones"),
    [
        ({}, [*WHOLE, end()]),
        ({}, [*WHOLE, end(), end()]),
        ({}, [delta("a"), end(code="cell_died")]),
        ({}, [delta("a"), end(finishReason="cancelled")]),
        ({"humd": [1.5]}, [delta("cd"), end()]),
        ({"bee": [1.85]}, [*WHOLE, end(), DIED]),
    ],
)
def test_what_is_right(kills: dict[str, list[float]], tones: list[Tone]) -> None:
    it = audit(**kills)
    for number, tone in enumerate(tones):
        it.hear(1.6 + number / 10, tone)
    assert it.faults() == []


@pytest.mark.parametrize(
    ("kills", "tones", "told"),
    [
        ({}, [], "no ending"),
        ({}, [delta("ab")], "no ending"),
        ({}, [*WHOLE, end(), end("other")], "2 endings"),
        ({"bee": [0.5]}, [*WHOLE, end(), DIED], "2 endings"),
        ({}, [delta("ab "), end()], "3 characters of 5"),
        ({}, [delta("ab "), delta("xx"), end()], "5 characters of 5"),
        ({"humd": [1.5]}, [*WHOLE, delta("cd"), end()], "7 characters, 5 sent"),
        ({}, [*WHOLE, end(), delta("x")], "after the ending"),
    ],
)
def test_what_is_wrong(kills: dict[str, list[float]], tones: list[Tone], told: str) -> None:
    it = audit(**kills)
    for number, tone in enumerate(tones):
        it.hear(1.6 + number / 10, tone)
    assert any(told in fault for fault in it.faults())


def test_a_seed_gives_the_same_run_with_every_kind_of_act() -> None:
    assert asks(7, 300, 4, real=False) == asks(7, 300, 4, real=False)
    assert asks(7, 300, 4, real=False) != asks(8, 300, 4, real=False)
    for count in (300, 10_000):
        plan = acts(7, count, real=False)
        assert {act.kind for act in plan} == {"engine", "tender", "bee", "humd", "slow"}
        assert all(act.at < count / 3 for act in plan if act.kind == "bee")
