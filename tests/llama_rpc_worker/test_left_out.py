"""Slices that are left out: who, when, for how long, and until when they are on trial."""

from __future__ import annotations

from hum_workers.llama_rpc_worker.facts import Offer, SliceState
from hum_workers.llama_rpc_worker.last_route import LastRoute
from hum_workers.llama_rpc_worker.left_out import FIRST, GOOD_LIFE, LONGEST, LeftOut
from hum_workers.llama_rpc_worker.route import Route
from hum_workers.llama_rpc_worker.shares import Share
from tests.llama_rpc_worker.routes import SMALL, WANT, offer

ONE, TWO = offer("one"), offer("two")


class Stage:
    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.it = LeftOut(lambda: self.now, self.lines.append)


def test_a_refusal_of_who_is_free_counts_at_once_and_each_time_longer() -> None:
    stage = Stage()
    for pause in (FIRST, 60.0, 120.0, 240.0, LONGEST, LONGEST):
        stage.it.refused([ONE], "not today", free=True)
        assert stage.it.now() == {"hid-one"}
        assert stage.lines[-1].endswith(
            f"is left out for {pause:g} s, as it could not be leased: not today"
        )
        assert stage.it.reasons() == [stage.lines[-1]]
        stage.now += pause
        assert stage.it.now() == frozenset()
        assert stage.it.on_trial("hid-one")
    stage.it.proven(["hid-one"])
    assert not stage.it.on_trial("hid-one")


def test_a_refusal_that_may_be_a_race_counts_three_times_in_a_row() -> None:
    stage = Stage()
    for _ in range(2):
        stage.it.refused([ONE], "another has it", free=False)
    stage.it.held(["hid-one"])
    for _ in range(2):
        stage.it.refused([ONE], "another has it", free=False)
    assert stage.lines == []
    stage.it.refused([ONE], "another has it", free=False)
    assert len(stage.lines) == 1


def test_cells_that_die_while_they_load_count_twice() -> None:
    stage = Stage()
    stage.it.lost([ONE, TWO], "it is dead", ready=False)
    stage.it.held(["hid-one", "hid-two"])
    assert stage.it.now() == frozenset()
    stage.it.lost([TWO], "it is dead", ready=True)
    assert stage.it.now() == {"hid-two"}
    assert GOOD_LIFE > FIRST


def last(*offers: Offer) -> LastRoute:
    it = LastRoute()
    shares = tuple(Share(one, (0, 1), False, 1, 1) for one in offers)
    it.began(
        Route(model=SMALL, want=WANT, shares=shares, local=(0, 0), head="last", why_head="said")
    )
    it.ended(10.0)
    return it


def test_slices_of_the_last_route_are_waited_for_unless_left_out_or_of_another_egg() -> None:
    it = last(ONE, TWO)
    assert it.holds_back(12.0, 3.0)
    assert not it.holds_back(13.0, 3.0)
    busy = offer("one", state=SliceState.RECYCLING)
    assert len(it.away([busy], ())) == 2
    assert len(it.away([busy], {"hid-two"})) == 1
    assert len(it.gone([busy], ())) == 1
    assert it.gone([busy], {"hid-two"}) == []
    it.other_egg = True
    assert len(it.away([busy], ())) == 1
    assert it.gone([busy], ()) == []
