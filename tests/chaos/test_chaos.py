"""Whatever dies, nothing is left: the short form of `bench.chaos`, each case in two ways."""

from __future__ import annotations

import pytest

from bench.chaos import as_json, sound, table, ways
from bench.chaos_cases import ALL, DEATHS, KILLS, LIMIT, LOADING, REAL, SHORT, STOPS, WILD, Case
from bench.chaos_run import Outcome, run
from hum_workers import lifecycle

EACH = [KILLS[0], KILLS[1], KILLS[3], KILLS[6], LOADING[2], STOPS[3], DEATHS[4]]


@pytest.mark.parametrize("case", EACH, ids=lambda case: case.name)
async def test_nobody_outlives(case: Case) -> None:
    lifecycle.become_subreaper()
    here = ways()
    way = here[(EACH.index(case) * 3) % len(here)]
    outcome = await run(case, way)
    assert outcome.left == ()
    assert outcome.dead < LIMIT
    if case.act == "EngineCore":
        assert outcome.code == "cell_died"
        assert outcome.ending is not None
        assert outcome.ending < LIMIT


@pytest.mark.parametrize("way", ways(), ids="/".join)
async def test_a_deaf_engine_is_stopped_in_every_kind_of_confinement(way: tuple[str, str]) -> None:
    lifecycle.become_subreaper()
    outcome = await run(STOPS[0], way)
    assert outcome.left == ()
    assert outcome.dead < LIMIT


def test_the_matrix_names_each_case_once() -> None:
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names)
    assert {case.name for case in (*SHORT, *REAL)} <= set(names)


def test_the_table_shows_what_was_left_and_who_promised_nothing() -> None:
    case = Case("a", "bee", fake=WILD, covered=("namespace",))
    good, bad = Outcome(0.5, 0.2, "cell_died", ()), Outcome(9.0, None, "", ("x (pid 1)",))
    row = {("namespace", "off"): good, ("guard", "off"): bad}
    assert table([(case, row)]).splitlines()[-1] == "| a | 0.50 | (9.00 left) | cell_died |"
    assert sound(case, ("guard", "off"), bad)
    assert not sound(case, ("namespace", "off"), bad)
    assert '"broken": 0' in as_json([(case, row)])
