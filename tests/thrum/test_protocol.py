"""The line reader: any cut of the bytes gives the same tones, and no line ends the reading."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from hum_workers.thrum.protocol import LineReader


def feed(reader: LineReader, *pieces: bytes) -> list[str]:
    return [tone["chi"] for piece in pieces for tone in reader.feed(piece)]


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not traced:
            tracemalloc.stop()
    assert peak - before < limit


def test_a_line_may_come_in_pieces() -> None:
    assert feed(LineReader(), b'{"ch', b'i":"a', b'"}', b"\n") == ["a"]


def test_many_lines_may_come_at_once_the_last_unfinished() -> None:
    reader = LineReader()
    assert feed(reader, b'{"chi":"a"}\n{"chi":"b"}\n{"chi":') == ["a", "b"]
    assert feed(reader, b'"c"}\n') == ["c"]


def test_an_empty_line_and_crlf_are_nothing_to_speak_of() -> None:
    reader = LineReader()
    assert feed(reader, b'\n\r\n\n{"chi":"a"}\r\n') == ["a"]
    assert reader.dropped == {"not_a_tone": 0, "too_long": 0}


def test_a_line_that_is_no_tone_is_counted_and_skipped() -> None:
    reader = LineReader()
    assert feed(reader, b'nonsense\n\xff\xfe\n[1]\n{"chi":"a"}\n') == ["a"]
    assert reader.dropped == {"not_a_tone": 3, "too_long": 0}


def test_a_line_at_the_limit_is_read_and_one_over_it_is_skipped() -> None:
    line = b'{"chi":"a"}'
    reader = LineReader(limit=len(line))
    assert feed(reader, line + b"\n", b" " + line + b"\n", line + b"\n") == ["a", "a"]
    assert reader.dropped["too_long"] == 1
    assert feed(reader, line[:5], line[5:] + b" \n", line + b"\n") == ["a"]
    assert reader.dropped["too_long"] == 2


def test_a_line_far_over_the_limit_takes_no_memory() -> None:
    reader = LineReader(limit=1024)
    piece = b"x" * 65_536
    with memory_below(4 * len(piece)):
        for _ in range(1_000):
            reader.feed(piece)
    assert feed(reader, b'\n{"chi":"a"}\n') == ["a"]
    assert reader.dropped["too_long"] == 1


def test_a_line_in_very_many_pieces_is_held_once() -> None:
    """Were the pieces kept apart, each byte would take fifty."""
    reader = LineReader()
    line = b'{"chi":"a","t":"' + b"x" * 20_000 + b'"}\n'
    tones = []
    with memory_below(4 * len(line)):
        for at in range(len(line)):
            tones += feed(reader, line[at : at + 1])
    assert tones == ["a"]


@given(st.data())
def test_any_cut_of_the_bytes_gives_the_same_tones(data: st.DataObject) -> None:
    lines = data.draw(
        st.lists(
            st.sampled_from([b"", b"bad", b'{"chi":"a"}', b'{"chi":"bb"}', b'{"chi":"ccccc"}'])
        )
    )
    limit = data.draw(st.sampled_from([12, 1000]))
    stream = b"".join(line + b"\n" for line in lines)
    whole, cut = LineReader(limit), LineReader(limit)
    at, tones = 0, []
    while at < len(stream):
        size = data.draw(st.integers(1, 20))
        tones += cut.feed(stream[at : at + size])
        at += size
    assert tones == whole.feed(stream)
    assert cut.dropped == whole.dropped
