"""How long one prompt waits for a route."""

from __future__ import annotations

from hum_workers.llama_rpc_worker.patience import COMING, WAIT, Patience


def test_without_hope_it_ends_soon() -> None:
    patience = Patience()
    assert not patience.over(100.0, expected=False)
    assert not patience.over(100.0 + WAIT, expected=False)
    assert patience.over(100.1 + WAIT, expected=False)


def test_a_slice_that_is_coming_is_waited_for_longer_and_not_for_ever() -> None:
    patience = Patience()
    assert not any(patience.over(float(now), expected=True) for now in range(0, int(COMING) + 1))
    assert patience.over(COMING + 0.1, expected=True)


def test_the_short_wait_counts_from_the_end_of_hope() -> None:
    patience = Patience()
    assert not patience.over(0.0, expected=True)
    assert not patience.over(20.0, expected=True)
    assert not patience.over(20.0 + WAIT, expected=False)
    assert patience.over(20.1 + WAIT, expected=False)
