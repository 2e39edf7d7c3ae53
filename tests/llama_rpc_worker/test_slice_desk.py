"""The desk of a slice: a lease ends with its process, and what it says is true at each step."""

from __future__ import annotations

import pytest

from hum_workers.llama_rpc_worker.facts import Build, Device, SliceState
from hum_workers.llama_rpc_worker.lease import LEASE_TIME, LeaseRefused
from hum_workers.llama_rpc_worker.slice_desk import NOT_STARTED, Desk, Terms

HOLDER, OTHER = "wbee_" + "a" * 64, "wbee_" + "b" * 64
BUILD = Build(commit="11434-abc", digest="0" * 16, protocol=(0, 0, 0))
READY = {"protocol": [7, 0, 0], "devices": [["CPU0", 10, 20]]}


class Stage:
    """A desk, the time it sees, and what it asked for."""

    def __init__(self, *, direct: bool = False) -> None:
        self.now = 0.0
        self.recycled: list[str] = []
        self.changes = 0
        self.cut = 0
        self.desk = Desk(
            hid="wbee_" + "c" * 64,
            name="slice",
            terms=Terms(memory=lambda devices: 1000 if devices else 0, direct=direct),
            changed=self._changed,
            now=lambda: self.now,
        )
        self.desk.recycle = self.recycled.append
        self.desk.end_streams = self._cut

    def _changed(self) -> None:
        self.changes += 1

    def _cut(self) -> None:
        self.cut += 1

    def up(self) -> None:
        self.desk.build = BUILD
        self.desk.starting()
        self.desk.ready("127.0.0.1:5000", READY)


def test_it_says_what_its_process_told() -> None:
    stage = Stage()
    assert stage.desk.facts().state is SliceState.STARTING
    assert stage.desk.facts().memory == 0
    assert stage.desk.facts().build == NOT_STARTED
    assert stage.desk.provides() == []
    stage.up()
    facts = stage.desk.facts()
    assert (facts.state, facts.memory, facts.build.protocol) == (SliceState.FREE, 1000, (7, 0, 0))
    assert facts.devices == (Device(name="CPU0", free=10, total=20),)
    assert stage.desk.provides() == ["build:11434-abc"]
    assert facts.direct is None


def test_where_its_network_is_private_it_says_the_place_of_rpc_server() -> None:
    stage = Stage(direct=True)
    assert stage.desk.facts().direct is None
    stage.up()
    assert stage.desk.facts().direct == "127.0.0.1:5000"


def test_a_lease_shows_in_the_hello_and_its_holder_alone_gets_the_address() -> None:
    stage = Stage()
    stage.up()
    token = stage.desk.lease(HOLDER, (0, 10), "f" * 16, "life")
    assert stage.desk.provides()[1:] == ["layers:0:10", "gguf:" + "f" * 16]
    assert stage.desk.address(HOLDER, token) == ("127.0.0.1", 5000)
    with pytest.raises(LeaseRefused, match="holds it"):
        stage.desk.address(OTHER, token)
    with pytest.raises(LeaseRefused, match="holds it"):
        stage.desk.lease(OTHER, (0, 10), "f" * 16, "life")


@pytest.mark.parametrize("end", ["release", "time"])
def test_after_a_lease_nobody_gets_the_slice_before_its_process_is_another(end: str) -> None:
    stage = Stage()
    stage.up()
    token = stage.desk.lease(HOLDER, (0, 10), "f" * 16, "life")
    if end == "release":
        stage.desk.release(HOLDER, token)
    else:
        stage.now = LEASE_TIME
        stage.desk.look()
    assert stage.cut == 1
    assert len(stage.recycled) == 1
    with pytest.raises(LeaseRefused, match="recycled"):
        stage.desk.lease(OTHER, (0, 10), "f" * 16, "life")
    stage.up()
    assert stage.desk.lease(OTHER, (0, 10), "f" * 16, "life")


def test_the_death_of_the_process_ends_the_lease() -> None:
    stage = Stage()
    stage.up()
    token = stage.desk.lease(HOLDER, (0, 10), "f" * 16, "life")
    stage.desk.failed("rpc-server has ended: SIGKILL")
    assert stage.recycled == []
    with pytest.raises(LeaseRefused, match="SIGKILL"):
        stage.desk.renew(HOLDER, token)
    stage.up()
    assert stage.desk.facts().state is SliceState.FREE


def test_who_comes_past_the_door_has_the_process_replaced() -> None:
    stage = Stage()
    stage.up()
    stage.desk.accepted()
    assert stage.recycled == ["somebody came past its door"]
    with pytest.raises(LeaseRefused):
        stage.desk.lease(HOLDER, (0, 10), "f" * 16, "life")
    stage.desk.starting()
    stage.desk.ready("127.0.0.1:5001", READY)
    assert len(stage.recycled) == 1


def test_a_client_that_the_holder_did_not_ask_for_ends_its_lease() -> None:
    stage = Stage()
    stage.up()
    token = stage.desk.lease(HOLDER, (0, 10), "f" * 16, "life")
    for _ in range(11):  # as llama-server looks at a slice before it stays
        stage.desk.address(HOLDER, token)
        stage.desk.accepted()
    stage.desk.address(HOLDER, token)
    assert stage.recycled == []
    stage.desk.accepted()
    stage.desk.accepted()
    assert stage.recycled == ["its lease is over: somebody came past its door"]
    assert stage.cut == 1
    with pytest.raises(LeaseRefused, match="recycled, as somebody came past its door"):
        stage.desk.renew(HOLDER, token)
    stage.up()
    stage.desk.lease(OTHER, (0, 10), "f" * 16, "life")
    stage.desk.accepted()
    assert len(stage.recycled) == 2, "between lease and load, too"


def test_where_clients_may_pass_the_door_none_is_a_stranger_during_a_lease() -> None:
    stage = Stage(direct=True)
    stage.up()
    stage.desk.lease(HOLDER, (0, 10), "f" * 16, "life")
    stage.desk.accepted()
    assert stage.recycled == []


def test_other_terms_are_for_leases_to_come() -> None:
    stage = Stage()
    stage.up()
    token = stage.desk.lease(HOLDER, (0, 10), "f" * 16, "life")
    stage.desk.adopt(Terms(memory=lambda devices: 7, layers=(0, 5), direct=True))
    facts = stage.desk.facts()
    assert (facts.memory, facts.layers, facts.direct) == (7, (0, 5), None)
    stage.desk.renew(HOLDER, token)
    stage.desk.release(HOLDER, token)
    stage.up()
    assert stage.desk.facts().direct == "127.0.0.1:5000"
    with pytest.raises(LeaseRefused, match="binds it to layers 0:5"):
        stage.desk.lease(HOLDER, (0, 10), "f" * 16, "life")
