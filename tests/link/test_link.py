"""FrameLink over real pipes, on both event loops."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hum_workers import link
from hum_workers.frames import Frame, FrameReader, Mmm, pack
from hum_workers.link import HIGH_WATER, FrameLink

WAIT = 20.0


class End:
    """One end of a pair of links, and all that it hears."""

    def __init__(self) -> None:
        self.frames: list[list[Any]] = []
        self.ends: list[str] = []
        self.pressure: list[bool] = []
        self._news = asyncio.Event()
        self.link = FrameLink(
            on_frame=self._note(self.frames),
            on_end=self._note(self.ends),
            on_pressure=self._note(self.pressure),
        )

    def _note(self, where: list[Any]) -> Callable[[Any], None]:
        def note(what: Any) -> None:
            where.append(what)
            self._news.set()

        return note

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
            while not condition():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[End, End]]:
    left, right = End(), End()
    to_right, to_left = os.pipe(), os.pipe()
    await left.link.open(to_left[0], to_right[1])
    await right.link.open(to_right[0], to_left[1])
    try:
        yield left, right
    finally:
        left.link.abort()
        right.link.abort()
        await closed(left, right)


async def closed(*ends: End) -> None:
    """Lets the transports report their ends."""
    for end in ends:
        assert await end.link.finished(WAIT)


@asynccontextmanager
async def bare() -> AsyncIterator[tuple[End, int, int]]:
    """A link whose other side is two plain descriptors: to read what it says, to write to it."""
    end = End()
    inward, outward = os.pipe(), os.pipe()
    await end.link.open(inward[0], outward[1])
    ours = {outward[0], inward[1]}
    try:
        yield end, outward[0], inward[1]
    finally:
        end.link.abort()
        for fd in ours:
            try:
                os.close(fd)
            except OSError:
                pass
        await closed(end)


async def test_frames_go_both_ways_in_order() -> None:
    async with pair() as (left, right):
        for number in range(100):
            left.link.send(Frame.CANCEL, number)
            right.link.send(Frame.STAGE, str(number), "")
        await right.until(lambda: len(right.frames) == 100)
        await left.until(lambda: len(left.frames) == 100)
        assert right.frames == [["cancel", n] for n in range(100)]
        assert left.frames == [["stage", str(n), ""] for n in range(100)]


async def test_both_directions_may_be_full_at_once() -> None:
    body = os.urandom(1 << 20)
    async with pair() as (left, right):
        for end in (left, right):
            for number in range(6):
                end.link.send(Frame.FEED, number, body)
            end.link.flush()
            assert end.link.unsent() > 4 << 20
        for end in (left, right):
            await end.until(lambda end=end: len(end.frames) == 6)  # type: ignore[misc]
            assert end.frames == [["feed", n, body] for n in range(6)]
            assert end.link.unsent() == 0


async def test_a_body_as_long_as_a_thrum_line_passes() -> None:
    body = b"z" * (64 << 20)
    async with pair() as (left, right):
        left.link.send(Frame.FEED, 1, body)
        left.link.send(Frame.CANCEL, 1)
        await right.until(lambda: len(right.frames) == 2)
        assert right.frames[0][2] == body
        assert right.frames[1] == ["cancel", 1]


async def test_events_of_one_turn_of_the_loop_leave_in_one_frame() -> None:
    async with pair() as (left, right):
        for number in range(3):
            left.link.event(number, int(Mmm.TEXT), "a")
        await right.until(lambda: len(right.frames) == 1)
        left.link.event(9, int(Mmm.TEXT), "b")
        await right.until(lambda: len(right.frames) == 2)
        assert right.frames == [
            ["mmm", [[0, 0, "a"], [1, 0, "a"], [2, 0, "a"]]],
            ["mmm", [[9, 0, "b"]]],
        ]


async def test_events_and_other_frames_keep_their_order() -> None:
    async with pair() as (left, right):
        left.link.event(1, 0, "a")
        left.link.send(Frame.CANCELLED, 1, True, 0.5)
        left.link.event(2, 0, "b")
        left.link.event(2, 0, "c")
        left.link.send(Frame.GONE, {})
        await right.until(lambda: len(right.frames) == 4)
        assert right.frames == [
            ["mmm", [[1, 0, "a"]]],
            ["cancelled", 1, True, 0.5],
            ["mmm", [[2, 0, "b"], [2, 0, "c"]]],
            ["gone", {}],
        ]


async def test_what_is_sent_before_the_pipes_are_open_is_not_lost() -> None:
    end = End()
    inward, outward = os.pipe(), os.pipe()
    end.link.send(Frame.SILENCE, 0.0, "early")
    await asyncio.sleep(0)
    await end.link.open(inward[0], outward[1])
    end.link.flush()
    assert list(FrameReader().feed(os.read(outward[0], 4096))) == [["silence", 0.0, "early"]]
    end.link.abort()
    await closed(end)
    os.close(inward[1])
    os.close(outward[0])


async def test_the_end_of_the_other_side_is_told_once() -> None:
    async with pair() as (left, right):
        left.link.close()
        await right.until(lambda: bool(right.ends))
        await closed(left, right)
        assert right.ends == ["the pipe was closed"]
        assert left.ends == []
        assert right.link.closed
        right.link.send(Frame.GONE, {})
        right.link.event(1, 0, "late")
        assert right.link.unsent() == 0


async def test_close_delivers_what_was_sent_before_it_however_much() -> None:
    async with pair() as (left, right):
        for number in range(5):
            left.link.send(Frame.FEED, number, b"x" * (1 << 20))
        left.link.event(5, 0, "last")
        left.link.close()
        await right.until(lambda: bool(right.ends))
        assert [frame[1] for frame in right.frames[:5]] == list(range(5))
        assert right.frames[5] == ["mmm", [[5, 0, "last"]]]


async def test_a_close_that_nobody_reads_is_waited_for_in_vain() -> None:
    async with bare() as (end, _, _):
        end.link.send(Frame.FEED, 1, b"x" * (1 << 20))
        end.link.close()
        assert not await end.link.finished(0.05)


@pytest.mark.parametrize("rubbish", [b"\xc1\xc1", b"hello", b"\x91\x81\x90\x01"])
async def test_rubbish_ends_the_link_and_says_so(rubbish: bytes) -> None:
    async with bare() as (end, _, write):
        os.write(write, pack(Frame.CANCEL, 1) + rubbish + pack(Frame.CANCEL, 2))
        await end.until(lambda: bool(end.ends))
        assert end.frames == [["cancel", 1]]
        assert "frame" in end.ends[0] or "array" in end.ends[0]
        assert end.link.closed


async def test_half_a_frame_and_then_the_end_is_an_end() -> None:
    async with bare() as (end, _, write):
        os.write(write, pack(Frame.FEED, 1, b"body")[:-2])
        os.close(write)
        await end.until(lambda: bool(end.ends))
        assert (end.frames, end.ends) == ([], ["the pipe was closed"])


async def test_a_reader_that_leaves_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LAST_FRAMES", 0.01)
    async with bare() as (end, read, _):
        os.close(read)
        end.link.send(Frame.CANCEL, 1)
        await end.until(lambda: bool(end.ends))
        assert len(end.ends) == 1


async def test_the_last_words_of_a_side_that_reads_no_more_are_heard() -> None:
    async with bare() as (end, read, write):
        os.close(read)
        end.link.send(Frame.CANCEL, 1)
        while not end.link._unread:  # noqa: ASYNC110
            await asyncio.sleep(0)
        os.write(write, pack(Frame.GONE, {}))
        os.close(write)
        await end.until(lambda: bool(end.ends))
        assert (end.frames, end.ends) == ([["gone", {}]], ["the pipe was closed"])


async def test_a_cancelled_open_leaves_no_descriptor_behind() -> None:
    before = pipes()
    for turns in range(1, 5):
        inward, outward = os.pipe(), os.pipe()
        end = End()
        opening = asyncio.ensure_future(end.link.open(inward[0], outward[1]))
        for _ in range(turns):
            await asyncio.sleep(0)
        if opening.cancel():
            with pytest.raises(asyncio.CancelledError):
                await opening
        else:
            end.link.abort()
        await closed(end)
        assert (end.ends, end.link.closed) == ([], True)
        os.close(inward[1])
        os.close(outward[0])
    assert pipes() == before


async def test_pressure_is_told_when_the_other_side_stops_reading_and_again_when_it_reads() -> None:
    async with bare() as (end, read, _):
        end.link.send(Frame.FEED, 1, b"x" * (HIGH_WATER // 2))
        end.link.flush()
        assert end.pressure == []
        end.link.send(Frame.FEED, 2, b"x" * (HIGH_WATER // 2 + (1 << 20)))
        await end.until(lambda: end.pressure == [True])
        reading = asyncio.create_task(asyncio.to_thread(drain, read, HIGH_WATER + (1 << 20)))
        await end.until(lambda: end.pressure == [True, False])
        await reading


def pipes() -> set[str]:
    """The pipes this process holds; uvloop opens other descriptors as it likes."""
    fds = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return {name for fd in fds if (name := _target(fd)).startswith("pipe:")}


def _target(fd: Path) -> str:
    try:
        return os.readlink(fd)
    except OSError:
        return ""


def drain(fd: int, size: int) -> None:
    while size > 0:
        size -= len(os.read(fd, 1 << 20))


async def test_frames_after_an_abort_in_the_middle_of_a_batch_are_not_heard() -> None:
    async with bare() as (end, _, write):
        heard: list[list[Any]] = []

        def hear(frame: list[Any]) -> None:
            heard.append(frame)
            end.link.abort()

        end.link._on_frame = hear
        os.write(write, pack(Frame.CANCEL, 1) + pack(Frame.CANCEL, 2))
        await closed(end)
        assert (heard, end.ends) == ([["cancel", 1]], [])
