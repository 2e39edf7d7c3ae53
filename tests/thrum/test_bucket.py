"""The bucket: what humd may read in any stretch of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.thrum.bucket import SHORTEST_WAIT, UNREAD_WAIT, Bucket
from tests.thrum.conftest import Clock


def test_a_new_bucket_is_full(clock: Clock) -> None:
    bucket = Bucket(2000, 256, clock)
    assert bucket.allowance() == 256


def test_tokens_come_back_with_time_up_to_the_burst(clock: Clock) -> None:
    bucket = Bucket(2000, 256, clock)
    bucket.take(256)
    assert bucket.allowance() == 0
    clock.pass_(0.05)
    assert bucket.allowance() == 100
    clock.pass_(60)
    assert bucket.allowance() == 256


def test_rate_0_lets_everything_pass(clock: Clock) -> None:
    bucket = Bucket(0, 1, clock)
    bucket.take(10_000)
    assert bucket.allowance() > 1_000_000
    assert bucket.wait() == SHORTEST_WAIT


@pytest.mark.parametrize(("rate", "burst"), [(-1, 256), (2000, 0)])
def test_a_pace_that_lets_nothing_pass_is_refused(clock: Clock, rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match=f"burst {burst} at least 1"):
        Bucket(rate, burst, clock)


def test_the_wait_is_until_the_next_token_but_never_below_a_millisecond(clock: Clock) -> None:
    bucket = Bucket(10, 4, clock)
    bucket.take(4)
    assert bucket.wait() == pytest.approx(0.1)
    clock.pass_(0.0995)
    assert bucket.wait() == SHORTEST_WAIT
    assert Bucket(2000, 4, clock).wait() == SHORTEST_WAIT


def test_tones_that_humd_does_not_read_keep_their_place(clock: Clock) -> None:
    bucket = Bucket(2000, 256, clock)
    bucket.all_read = lambda: False
    bucket.take(200)
    clock.pass_(60)
    assert bucket.allowance() == 56
    bucket.take(56)
    clock.pass_(60)
    assert bucket.allowance() == 0
    assert bucket.wait() == UNREAD_WAIT


def test_looks_at_a_socket_that_is_not_read_become_rarer(clock: Clock) -> None:
    bucket = Bucket(2000, 256, clock)
    bucket.all_read = lambda: False
    bucket.take(256)
    waits = []
    for _ in range(30):
        waits.append(bucket.wait())
        clock.pass_(waits[-1])
    assert waits[0] == SHORTEST_WAIT
    assert waits == sorted(waits)
    assert waits[-1] == UNREAD_WAIT


def test_once_humd_has_read_them_tokens_come_back_at_the_rate_and_not_at_once(clock: Clock) -> None:
    bucket = Bucket(2000, 256, clock)
    bucket.all_read = lambda: False
    bucket.take(256)
    clock.pass_(60)
    assert bucket.allowance() == 0
    bucket.all_read = lambda: True
    assert bucket.allowance() == 0
    clock.pass_(0.01)
    assert bucket.allowance() == 20


def test_the_socket_is_looked_at_once_for_many_tones(clock: Clock) -> None:
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return True

    bucket = Bucket(2000, 256, clock)
    bucket.all_read = look
    for _ in range(1600):
        clock.pass_(0.001)
        assert bucket.allowance() > 200
        bucket.take(1)
    assert looks <= 100


def test_a_lost_connection_forgets_what_was_unread_and_gives_no_tokens(clock: Clock) -> None:
    bucket = Bucket(2000, 256, clock)
    bucket.all_read = lambda: False
    bucket.take(256)
    bucket.forget_unread()
    assert bucket.allowance() == 0
    clock.pass_(2)
    assert bucket.allowance() == 256


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0004, 0.003, 0.05, 1.0, 3.0]),
        st.integers(0, 40),  # what the bee wants to write
        st.booleans(),  # whether humd reads before
        st.booleans(),  # whether humd reads after
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([1, 5, 32]), st.sampled_from([10, 2000]))
def test_in_any_t_seconds_humd_reads_at_most_burst_and_rate_t(
    steps: list[tuple[float, int, bool, bool]], burst: int, rate: int
) -> None:
    clock, unread, read = Clock(), 0, [(0.0, 0)]
    bucket = Bucket(rate, burst, clock)
    bucket.all_read = lambda: unread == 0
    for seconds, wanted, before, after in steps:
        clock.pass_(seconds)
        if before:
            read.append((clock(), unread))
            unread = 0
        count = min(wanted, bucket.allowance())
        bucket.take(count)
        unread += count
        if after:
            read.append((clock(), unread))
            unread = 0
    for first, (start, _) in enumerate(read):
        total = 0
        for time, count in read[first:]:
            total += count
            assert total <= burst + rate * (time - start) + 1e-6
