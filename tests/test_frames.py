"""Frames: whole, in pieces, and everything that is none."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.errors import FrameError
from hum_workers.frames import Frame, FrameReader, Mmm, pack

LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.binary()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


def read(*parts: bytes) -> list[list[Any]]:
    reader = FrameReader()
    return [frame for part in parts for frame in reader.feed(part)]


@given(st.lists(st.lists(VALUES, min_size=1), max_size=4), st.lists(st.integers(0, 400)))
def test_frames_arrive_as_they_were_sent_however_they_are_cut(
    frames: list[list[Any]], cuts: list[int]
) -> None:
    data = b"".join(pack(*frame) for frame in frames)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parts = [data[a:b] for a, b in zip(places, places[1:], strict=False)]
    assert read(*parts) == frames


def test_names_and_kinds_travel_as_plain_values() -> None:
    frame = pack(Frame.MMM, [[1, Mmm.TEXT, "ä"], [2, Mmm.FINISH, {"reason": "stop"}]])
    assert read(frame) == [["mmm", [[1, 0, "ä"], [2, 3, {"reason": "stop"}]]]]
    assert read(pack(Frame.FEED, 7, b"\x00\xff")) == [["feed", 7, b"\x00\xff"]]


def test_a_frame_comes_as_soon_as_its_last_byte_is_there() -> None:
    reader = FrameReader()
    data = pack(Frame.CANCEL, 3)
    assert list(reader.feed(data[:-1])) == []
    assert list(reader.feed(data[-1:] + data)) == [["cancel", 3], ["cancel", 3]]


@pytest.mark.parametrize(
    "rubbish",
    [
        b"hello",
        b"\xc1",
        b"\x90",
        b"\x80",
        b"\xc0",
        b"\x91" * 5000,
        b"\x91\xa2\xff\xff",
        b"\x91\x81\x90\x01",
        b"\xdd\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=[
        "text",
        "never-used",
        "empty array",
        "map",
        "nil",
        "deep",
        "no utf-8",
        "a list as key",
        "array of 4 Gi",
        "http",
    ],
)
def test_what_is_no_frame_is_refused_in_a_sentence(rubbish: bytes) -> None:
    with pytest.raises(FrameError):
        read(rubbish)


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_frame_error(data: bytes) -> None:
    try:
        frames = read(data)
    except FrameError:
        return
    assert all(isinstance(frame, list) and frame for frame in frames)


def test_frames_before_the_rubbish_still_arrive() -> None:
    reader = FrameReader()
    frames = reader.feed(pack(Frame.CANCEL, 1) + b"\xc1")
    assert next(frames) == ["cancel", 1]
    with pytest.raises(FrameError):
        next(frames)


def test_a_reader_holds_no_more_than_its_limit() -> None:
    reader = FrameReader(limit=1000)
    part = msgpack.packb([b"x" * 3000])[:900]
    assert list(reader.feed(part)) == []
    with pytest.raises(FrameError, match="unreadable frame"):
        list(reader.feed(part))
