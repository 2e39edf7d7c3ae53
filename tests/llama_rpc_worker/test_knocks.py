"""Who may knock at a slice's door, and which stranger has to go."""

from __future__ import annotations

from dataclasses import dataclass

from hum_workers.llama_rpc_worker.knocks import MOST_ORIGINS, Knocks, Seldom, has_to_go


@dataclass(frozen=True)
class Stranger:
    origin: str
    number: int


def test_each_origin_has_its_own_share() -> None:
    now = 0.0
    knocks = Knocks(2, 3, lambda: now)
    assert [knocks.admit("a") for _ in range(5)] == [True, True, True, False, False]
    assert knocks.admit("b")
    now = 1.0
    assert [knocks.admit("a") for _ in range(3)] == [True, True, False]


def test_the_origins_that_are_remembered_are_bounded() -> None:
    knocks = Knocks(0.001, 1, lambda: 0.0)
    assert knocks.admit("a")
    assert not knocks.admit("a")
    assert all(knocks.admit(str(number)) for number in range(MOST_ORIGINS))
    assert knocks.admit("a")


def test_the_oldest_of_the_origin_that_has_most_has_to_go() -> None:
    strangers = [Stranger(origin, number) for number, origin in enumerate("abbabb")]
    assert has_to_go(strangers) == Stranger("b", 1)
    assert has_to_go(strangers[:2]) == Stranger("a", 0)


def test_of_many_lines_some_are_written_and_the_rest_counted() -> None:
    now = 0.0
    lines = Seldom(1, 2, lambda: now)
    assert [lines.admit() for _ in range(5)] == [0, 0, None, None, None]
    now = 1.0
    assert [lines.admit() for _ in range(2)] == [3, None]
