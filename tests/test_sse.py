"""Server-sent events: WHATWG HTML section 9.2, and the shapes that engines send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.errors import TurnError
from hum_workers.tender.sse import EventStream


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cuts `data` at the given places, in any order."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in zip(places, places[1:], strict=False)]


def read(pieces: list[bytes]) -> list[bytes]:
    stream = EventStream()
    return [payload for piece in pieces for payload in stream.feed(piece)]


def test_one_event_in_one_read() -> None:
    assert read([b"data: {}\n\n"]) == [b"{}"]


def test_many_events_in_one_read_keep_their_order() -> None:
    assert read([b"data: 1\n\ndata: 2\n\ndata: 3\n\n"]) == [b"1", b"2", b"3"]


def test_an_event_is_held_until_its_blank_line() -> None:
    stream = EventStream()
    assert stream.feed(b"data: a\n\ndata: b") == [b"a"]
    assert stream.feed(b"b\n") == []
    assert stream.feed(b"\ndata: c\n\n") == [b"bb", b"c"]


def test_an_event_cut_by_the_end_is_dropped() -> None:
    assert read([b"data: whole\n\ndata: cut\n"]) == [b"whole"]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_all_line_ends_of_the_standard_are_known(newline: bytes) -> None:
    data = b"data: a|data: b||: comment||data:c||".replace(b"|", newline)
    assert read([data]) == [b"a\nb", b"c"]
    assert read([data[n : n + 1] for n in range(len(data))]) == [b"a\nb", b"c"]


def test_comments_and_other_fields_are_no_events() -> None:
    data = b": keep-alive\n\nevent: x\nid: 1\nretry: 5\n\nevent: y\ndata: a\n\ndata\n\nfoo\n\n"
    assert read([data]) == [b"a", b""]


def test_one_space_after_the_colon_is_no_data() -> None:
    assert read([b"data:a\n\ndata:  b\n\n"]) == [b"a", b" b"]


def test_three_line_ends_in_a_row_are_one_gap() -> None:
    assert read([b"data: a\n\n\ndata: b\n\n\n\n"]) == [b"a", b"b"]


def test_bytes_of_a_character_are_never_parted() -> None:
    data = "data: é😀\n\n".encode()
    for cut in range(len(data)):
        assert read([data[:cut], data[cut:]]) == ["é😀".encode()]


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_an_event_over_the_limit_is_refused(pieces: int) -> None:
    stream = EventStream(limit=1000)
    data = b"data: " + b"x" * 2000 + b"\n\n"
    size = len(data) // pieces + 1
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    with pytest.raises(TurnError, match="more than 1000 bytes"):
        [stream.feed(part) for part in parts]


def test_events_below_the_limit_may_come_in_a_read_above_it() -> None:
    assert len(EventStream(limit=100).feed(b"data: 12345678\n\n" * 50)) == 50


def test_a_large_event_in_small_reads_takes_linear_time() -> None:
    """16 MiB in reads of 1 KiB: copying what is held each time would move 128 GiB."""
    stream = EventStream()
    stream.feed(b"data: ")
    for _ in range(16 * 1024 - 1):
        assert stream.feed(b"x" * 1024) == []
    assert len(stream.feed(b"\n\n")[0]) == (16 * 1024 - 1) * 1024


EVENTS = st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), max_size=8)


@given(EVENTS, st.lists(st.integers(min_value=0), max_size=6), st.sampled_from(["\n", "\r\n"]))
def test_cuts_change_nothing(texts: list[str], cuts: list[int], newline: str) -> None:
    data = "".join(f"data: {text}{newline}{newline}" for text in texts).encode()
    assert read(split(data, cuts)) == [text.encode() for text in texts]


@given(st.binary(), st.lists(st.integers(min_value=0), max_size=6))
def test_any_bytes_are_read_alike_whole_or_cut(data: bytes, cuts: list[int]) -> None:
    assert read(split(data, cuts)) == read([data])
