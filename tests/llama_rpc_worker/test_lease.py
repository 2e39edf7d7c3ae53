"""The lease of a slice: one holder, an end after 20 s, and nothing before it is recycled."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hum_workers.llama_rpc_worker.facts import SliceState
from hum_workers.llama_rpc_worker.lease import (
    LEASE_TIME,
    Lease,
    LeaseBook,
    LeaseRefused,
    WrongTransition,
)

ANN, BEN = "wbee_ann", "wbee_ben"


def free_slice() -> LeaseBook:
    book = LeaseBook()
    book.ready()
    return book


def test_a_free_slice_is_leased_to_one_holder() -> None:
    book = free_slice()
    book.grant(ANN, (0, 10), "f00d", now=0)
    assert (book.state, book.holder) == (SliceState.LEASED, ANN)
    with pytest.raises(LeaseRefused, match="can't be leased now: wbee_ann holds it$"):
        book.grant(BEN, (0, 10), "f00d", now=1)


def test_renewals_keep_a_lease_and_its_last_one_counts() -> None:
    book = free_slice()
    token = book.grant(ANN, (0, 10), "f00d", now=0).token
    book.renew(ANN, token, now=LEASE_TIME - 1)
    assert not book.expire(2 * LEASE_TIME - 1.1)
    assert book.expire(2 * LEASE_TIME - 1)
    assert book.state is SliceState.RECYCLING
    assert "not renewed for 20 s" in book.reason


def test_a_renewal_that_comes_too_late_is_refused() -> None:
    book = free_slice()
    token = book.grant(ANN, (0, 10), "f00d", now=0).token
    with pytest.raises(LeaseRefused, match="lease is over: it is being recycled, as it was not"):
        book.renew(ANN, token, now=LEASE_TIME)


def test_a_token_in_other_hands_is_worth_nothing() -> None:
    book = free_slice()
    token = book.grant(ANN, (0, 10), "f00d", now=0).token
    for holder, word in ((BEN, token), (ANN, "guess"), (ANN, "ü")):
        with pytest.raises(LeaseRefused, match="the lease is over: wbee_ann holds it"):
            book.release(holder, word, now=1)
    assert book.state is SliceState.LEASED


def test_nobody_gets_a_slice_that_is_not_recycled() -> None:
    book = free_slice()
    book.release(ANN, book.grant(ANN, (0, 10), "f00d", now=0).token, now=1)
    for holder in (ANN, BEN):
        with pytest.raises(LeaseRefused, match="it is being recycled, as its holder released it"):
            book.grant(holder, (0, 10), "f00d", now=2)
    book.recycled()
    assert book.grant(BEN, (0, 10), "f00d", now=3).holder == BEN


def test_a_holder_that_was_started_anew_ends_its_own_old_lease() -> None:
    book = free_slice()
    book.grant(ANN, (0, 10), "f00d", now=0, life="one")
    with pytest.raises(LeaseRefused, match="as its holder has been started anew"):
        book.grant(ANN, (0, 10), "f00d", now=1, life="two")
    assert book.state is SliceState.RECYCLING


def test_a_second_wish_of_the_same_life_leaves_the_lease_alone() -> None:
    book = free_slice()
    book.grant(ANN, (0, 10), "f00d", now=0, life="one")
    with pytest.raises(LeaseRefused, match="wbee_ann holds it"):
        book.grant(ANN, (10, 20), "f00d", now=1, life="one")
    assert book.state is SliceState.LEASED


def test_a_failure_ends_the_lease_and_is_told_to_the_next_asker() -> None:
    ends: list[tuple[Lease, str]] = []
    book = LeaseBook(ended=lambda lease, reason: ends.append((lease, reason)))
    book.ready()
    lease = book.grant(ANN, (0, 10), "f00d", now=0)
    book.failed("rpc-server ended with -6")
    assert ends == [(lease, "rpc-server ended with -6")]
    with pytest.raises(LeaseRefused, match="it has failed: rpc-server ended with -6"):
        book.grant(BEN, (0, 10), "f00d", now=1)
    book.starting()
    with pytest.raises(LeaseRefused, match="it is being started"):
        book.grant(BEN, (0, 10), "f00d", now=2)
    book.ready()
    assert book.grant(BEN, (0, 10), "f00d", now=3)


def test_a_slice_that_its_egg_binds_takes_nothing_else() -> None:
    book = LeaseBook(layers=(0, 10), fingerprint="f00d")
    book.ready()
    with pytest.raises(LeaseRefused, match="to layers 0:10, and 0:11 were asked for"):
        book.grant(ANN, (0, 11), "f00d", now=0)
    with pytest.raises(LeaseRefused, match="to the model f00d, and 'beef' was asked for"):
        book.grant(ANN, (0, 10), "beef", now=0)
    assert book.grant(ANN, (0, 10), "f00d", now=0)


@pytest.mark.parametrize("layers", [(-1, 2), (3, 2)])
def test_layers_that_are_no_range_are_refused(layers: tuple[int, int]) -> None:
    with pytest.raises(LeaseRefused, match="are no range"):
        free_slice().grant(ANN, layers, "f00d", now=0)


def test_a_wrong_transition_is_the_callers_fault() -> None:
    with pytest.raises(WrongTransition, match=r"a slice that is starting has no recycled\(\)"):
        LeaseBook().recycled()


class Slices(RuleBasedStateMachine):
    """Any order of calls, against the rules as a person would say them."""

    holders = st.sampled_from([ANN, BEN])
    lives = st.sampled_from(["", "one", "two"])

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.clean = True
        self.begun: list[Lease] = []
        self.over: list[Lease] = []
        self.renewed = 0.0
        self.book = LeaseBook(ended=self.ended)

    def ended(self, lease: Lease, reason: str) -> None:
        assert reason
        self.clean = False
        self.over.append(lease)

    @rule(seconds=st.sampled_from([0.1, 5.0, 19.9, 20.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(holder=holders, life=lives)
    def grant(self, holder: str, life: str) -> None:
        with suppress(LeaseRefused):
            self.begun.append(self.book.grant(holder, (0, 1), "f00d", self.now, life))
            assert self.clean, "memory with another's data was given away"
            self.renewed = self.now

    @precondition(lambda self: self.begun)
    @rule(holder=holders, data=st.data(), method=st.sampled_from(["renew", "release", "held"]))
    def use(self, holder: str, data: st.DataObject, method: str) -> None:
        lease = data.draw(st.sampled_from(self.begun))
        live = lease is self.book.lease and holder == lease.holder
        in_time = self.now < self.renewed + LEASE_TIME
        try:
            getattr(self.book, method)(holder, lease.token, self.now)
        except LeaseRefused:
            assert not (live and in_time)
        else:
            assert live
            assert in_time
            if method == "renew":
                self.renewed = self.now

    @rule()
    def expire(self) -> None:
        was = self.book.lease
        assert self.book.expire(self.now) == (
            was is not None and self.now >= self.renewed + LEASE_TIME
        )

    @rule(method=st.sampled_from(["ready", "starting", "recycled", "failed", "revoke"]))
    def outside(self, method: str) -> None:
        state = self.book.state
        allowed = {
            "ready": {SliceState.STARTING},
            "starting": {SliceState.FAILED, SliceState.FREE},
            "recycled": {SliceState.RECYCLING},
            "failed": set(SliceState) - {SliceState.FAILED},
            "revoke": {SliceState.LEASED},
        }[method]
        arguments = ["as tried"] if method in ("failed", "revoke") else []
        if state not in allowed:
            with pytest.raises(WrongTransition):
                getattr(self.book, method)(*arguments)
            assert self.book.state is state
            return
        getattr(self.book, method)(*arguments)
        if method in ("recycled", "starting"):
            self.clean = True

    @invariant()
    def a_lease_is_there_while_leased_and_never_else(self) -> None:
        assert (self.book.state is SliceState.LEASED) == (self.book.lease is not None)
        assert (self.book.expires is None) == (self.book.lease is None)

    @invariant()
    def every_lease_ends_once(self) -> None:
        living = [self.book.lease] if self.book.lease else []
        assert self.over + living == self.begun


TestSlices = Slices.TestCase
