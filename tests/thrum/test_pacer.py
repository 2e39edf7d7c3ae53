"""Between turns: who goes next, the bucket, endings and their echoes, a lost connection."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from hum_workers.thrum.outbox import Sent
from hum_workers.thrum.pacer import ENDINGS_KEPT, Pacer
from hum_workers.thrum.tones import encode
from tests.thrum.conftest import Clock, tone

HELLO = encode({"chi": "hello"})


def taken(pacer: Pacer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in pacer.take().splitlines()]


def drain(pacer: Pacer, clock: Clock) -> list[dict[str, Any]]:
    tones = taken(pacer)
    while (wait := pacer.wait()) is not None:
        clock.pass_(wait)
        tones += taken(pacer)
    return tones


def started(pacer: Pacer, sid: str) -> Any:
    """An outbox that is past its head start."""
    outbox = pacer.outbox(sid, lambda: None)
    for _ in range(3):
        outbox.tone(tone("pulse", sid=sid))
    return outbox


@pytest.fixture
def pacer(clock: Clock) -> Pacer:
    return Pacer(100, 4, clock, "h")


def test_nothing_waits_in_a_new_pacer(pacer: Pacer) -> None:
    assert (pacer.take(), pacer.wait(), pacer.idle) == (b"", None, True)


def test_no_more_tones_go_than_the_bucket_holds_and_the_ending_counts(
    pacer: Pacer, clock: Clock
) -> None:
    outboxes = [pacer.outbox(str(n), lambda: None) for n in range(6)]
    for outbox in outboxes:
        outbox.end(tone("finish"))
    assert len(taken(pacer)) == 4
    assert pacer.take() == b""
    assert pacer.wait() == pytest.approx(0.01)
    clock.pass_(0.01)
    assert len(taken(pacer)) == 1
    clock.pass_(0.02)
    assert len(taken(pacer)) == 1


def test_text_that_waits_for_the_bucket_is_merged(pacer: Pacer, clock: Clock) -> None:
    outbox = pacer.outbox("s", lambda: None)
    tones = []
    for text in "abcdefgh":
        outbox.delta("text", 0, text)
        tones += taken(pacer)
    outbox.end(tone("finish"))
    tones += drain(pacer, clock)
    assert [t.get("delta", t["chi"]) for t in tones] == ["a", "b", "c", "d", "efgh", "finish"]


def test_turns_that_wait_take_turns(pacer: Pacer, clock: Clock) -> None:
    a, b = started(pacer, "a"), started(pacer, "b")
    clock.pass_(1)
    drain(pacer, clock)
    for _ in range(3):
        a.tone(tone("pulse", sid="a"))
    b.tone(tone("pulse", sid="b"))
    assert [t["sid"] for t in drain(pacer, clock)] == ["a", "b", "a", "a"]


def test_turns_of_one_sid_do_not_mix_however_long_the_first_waits(
    pacer: Pacer, clock: Clock
) -> None:
    outboxes = [pacer.outbox("s", lambda: None) for _ in range(3)]
    outboxes[2].end(tone("error", n=2))
    for n, outbox in enumerate(outboxes[:2]):
        outbox.tone(tone(n=n))
        outbox.delta("text", n, "x" * 9000)
    outboxes[1].end(tone("finish", n=1))
    tones = drain(pacer, clock)
    assert [t.get("n", t.get("blockIdx")) for t in tones] == [0, 0, 0]
    outboxes[0].end(tone("finish", n=0))
    tones = drain(pacer, clock)
    assert [t.get("n", t.get("blockIdx")) for t in tones] == [0, 1, 1, 1, 1, 2]
    assert pacer.wait() is None


def test_the_first_tones_of_a_turn_go_ahead_of_merged_deltas(pacer: Pacer, clock: Clock) -> None:
    busy = [started(pacer, f"busy{n}") for n in range(3)]
    drain(pacer, clock)
    for outbox in busy:
        outbox.delta("text", 0, "x")
    new = pacer.outbox("new", lambda: None)
    for _ in range(4):
        new.tone(tone("pulse", sid="new"))
    assert [t["sid"] for t in drain(pacer, clock)] == [
        *["new"] * 3,
        "busy0",
        "busy1",
        "busy2",
        "new",
    ]


def test_an_urgent_line_goes_ahead_of_all_and_counts(pacer: Pacer, clock: Clock) -> None:
    pacer.outbox("s", lambda: None).tone(tone())
    pacer.urgent(HELLO)
    pacer.urgent(HELLO)
    clock.pass_(1)
    assert [t["chi"] for t in taken(pacer)] == ["hello", "hello", "session-ready"]
    for _ in range(3):
        pacer.urgent(HELLO)
    assert len(taken(pacer)) == 1


def test_notify_is_called_once_between_two_takes(pacer: Pacer) -> None:
    calls: list[int] = []
    pacer.notify = lambda: calls.append(1)
    a, b = (pacer.outbox(sid, lambda: None) for sid in "ab")
    a.delta("text", 0, "x")
    a.delta("text", 0, "y")
    b.tone(tone())
    pacer.urgent(HELLO)
    assert len(calls) == 1
    pacer.take()
    a.delta("text", 0, "z")
    assert len(calls) == 2


def ended(pacer: Pacer, sid: str) -> dict[str, Any]:
    pacer.outbox(sid, lambda: None).end(tone("finish", sid=sid))
    (ending,) = taken(pacer)
    return ending


def after_loss(pacer: Pacer, clock: Clock) -> list[dict[str, Any]]:
    pacer.lost()
    pacer.urgent(HELLO)
    tones = drain(pacer, clock)
    assert tones.pop(0) == {"chi": "hello"}
    return tones


def test_an_ending_without_echo_goes_again_after_the_next_hello_and_only_once(
    pacer: Pacer, clock: Clock
) -> None:
    ending = ended(pacer, "s")
    assert after_loss(pacer, clock) == [ending]
    assert not pacer.idle
    assert after_loss(pacer, clock) == []
    assert pacer.idle


def test_an_ending_that_waits_for_its_second_time_survives_another_loss(
    pacer: Pacer, clock: Clock
) -> None:
    ending = ended(pacer, "s")
    pacer.lost()
    assert not pacer.idle
    assert after_loss(pacer, clock) == [ending]


def test_an_echoed_ending_does_not_go_again(pacer: Pacer, clock: Clock) -> None:
    ending = ended(pacer, "s")
    pacer.echoed(ending["rid"])
    pacer.echoed("unknown")
    assert pacer.idle
    assert after_loss(pacer, clock) == []


def test_repeated_endings_go_ahead_of_the_turns_that_wait(pacer: Pacer, clock: Clock) -> None:
    ending = ended(pacer, "s")
    pacer.outbox("s", lambda: None).tone(tone())
    assert [t["chi"] for t in after_loss(pacer, clock)] == ["finish", "session-ready"]
    assert ending["chi"] == "finish"


def test_an_ending_is_not_repeated_into_a_later_turn_of_its_sid(pacer: Pacer, clock: Clock) -> None:
    """Chosen: the later turn's asker would take it for its own; the earlier hears the later end."""
    ended(pacer, "s")
    other = ended(pacer, "other")
    pacer.outbox("s", lambda: None).tone(tone())
    taken(pacer)
    assert after_loss(pacer, clock) == [other]


def test_a_loss_makes_urgent_lines_stale(pacer: Pacer) -> None:
    pacer.urgent(HELLO)
    pacer.lost()
    assert pacer.take() == b""


def test_text_that_waits_when_the_connection_goes_is_sent_after_it(
    pacer: Pacer, clock: Clock
) -> None:
    outbox = pacer.outbox("s", lambda: None)
    outbox.delta("text", 0, "a")
    pacer.lost()
    outbox.delta("text", 0, "b")
    outbox.end(tone("finish"))
    pacer.urgent(HELLO)
    hello, delta, finish = drain(pacer, clock)
    assert (hello["chi"], delta["delta"]) == ("hello", "ab")
    assert finish["ext"]["h"]["chars"] == 2


def test_a_reconnect_gives_no_tokens_but_those_of_time(pacer: Pacer, clock: Clock) -> None:
    """Chosen: two full buckets within one pause of an asker would be more than it holds."""
    pacer.outbox("s", lambda: None).tone(tone())
    for _ in range(3):
        pacer.urgent(HELLO)
    assert len(taken(pacer)) == 4
    pacer.lost()
    pacer.urgent(HELLO)
    assert pacer.take() == b""
    clock.pass_(0.01)
    assert pacer.take() == HELLO


def test_endings_that_humd_never_echoes_are_kept_up_to_a_bound(clock: Clock) -> None:
    pacer = Pacer(0, 1, clock, "h")
    for n in range(ENDINGS_KEPT + 3):
        pacer.outbox(f"s{n}", lambda: None).end(tone("finish", sid=f"s{n}"))
    assert len(taken(pacer)) == ENDINGS_KEPT + 3
    again = after_loss(pacer, clock)
    assert len(again) == ENDINGS_KEPT
    assert again[0]["sid"] == "s3"


def test_of_an_ending_that_is_done_with_nothing_is_kept(pacer: Pacer, clock: Clock) -> None:
    pacer.echoed(ended(pacer, "echoed")["rid"])
    ended(pacer, "lost twice")
    after_loss(pacer, clock)
    after_loss(pacer, clock)
    gc.collect()
    kept = [found for found in gc.get_objects() if isinstance(found, Sent)]
    assert [ending.sid for ending in kept] == []


def test_a_turn_taken_off_the_list_does_not_disturb_the_others(pacer: Pacer, clock: Clock) -> None:
    a, b, c = (started(pacer, sid) for sid in "abc")
    drain(pacer, clock)
    for outbox in (a, b, c):
        outbox.delta("text", 0, "x")
    b.discard()
    young = pacer.outbox("d", lambda: None)
    young.delta("text", 0, "x")
    young.discard()
    assert len(drain(pacer, clock)) == 2
