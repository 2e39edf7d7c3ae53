"""An engine's output: any amount, length and kind of it in bounded memory, never a stop."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.process import output
from hum_workers.process.logfile import LogFile
from hum_workers.process.output import LineSplitter, Output, Ring

WAIT = 20.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    yield read_end, write_end
    for fd in (read_end, write_end):
        try:
            os.close(fd)
        except OSError:
            pass


def texts(splitter: LineSplitter, *chunks: bytes) -> list[bytes]:
    return [line for chunk in chunks for line, _ in splitter.feed(chunk)]


def test_lines_end_at_lf_crlf_and_cr_over_any_edge() -> None:
    assert texts(LineSplitter(), b"a\nb\r\nc\r", b"\nd\re", b"\n") == [b"a", b"b", b"c", b"d", b"e"]


def test_only_a_line_that_a_bare_cr_ends_is_passing() -> None:
    assert LineSplitter().feed(b"10%\r20%\r\n\rx\n") == [
        (b"10%", True),
        (b"20%", False),
        (b"x", False),
    ]


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7))
def test_the_cut_of_the_chunks_never_changes_the_lines(parts: list[bytes], size: int) -> None:
    whole = b"\n".join(parts).replace(b"\x1b", b"") + b"\n"
    chunks = [whole[i : i + size] for i in range(0, len(whole), size)]
    once, often = LineSplitter(), LineSplitter()
    assert texts(once, whole) == texts(often, *chunks)


def test_a_line_without_end_costs_its_limit_and_the_rest_is_counted() -> None:
    splitter = LineSplitter(limit=10)
    for _ in range(100):
        assert splitter.feed(b"x" * 1000) == []
    assert splitter.partial() == b"x" * 10
    assert texts(splitter, b"\n") == [b"x" * 10 + b" [99990 bytes more]"]
    assert splitter.cut_bytes == 99990


def test_colours_titles_and_control_characters_go_text_stays() -> None:
    line = b"\x1b[1;32mINFO\x1b[0m\t\x1b]0;title\x07gr\xc3\xbcn\x00\x08 \x1b[2K\x1b(Bend\x7f"
    assert output.clean(line) == b"INFO\tgr\xc3\xbcn end"


def test_the_ring_keeps_the_last_lines_in_number_and_bytes() -> None:
    ring = Ring(lines=3, size=100)
    for n in range(5):
        ring.add(b"%d" % n)
    assert ring.lines() == [b"2", b"3", b"4"]
    ring.add(b"x" * 99)
    assert ring.lines() == [b"4", b"x" * 99]
    ring.add(b"y" * 200)
    assert ring.lines() == []


def test_a_progress_bar_takes_one_place_and_a_newline_leaves_it() -> None:
    ring = Ring()
    ring.add(b"before")
    for percent in range(100):
        ring.add(b"%d%%" % percent, passing=True)
    assert ring.lines() == [b"before", b"99%"]
    ring.add(b"")
    ring.add(b"after")
    assert ring.lines() == [b"before", b"99%", b"after"]


async def test_ten_megabytes_of_one_line_and_binary_rubbish_do_not_stop_it(
    pipe: tuple[int, int],
) -> None:
    lines: list[str] = []
    out = Output(pipe[0], lines.append)

    def shout() -> None:
        with open(pipe[1], "wb", closefd=False) as engine:
            engine.write(b"x" * (10 << 20) + b"\n")
            engine.write(bytes(range(256)) * 100 + b"\n")
            engine.write(b"at last")
        os.close(pipe[1])

    async with asyncio.timeout(WAIT):
        await asyncio.to_thread(shout)
        await out.ended
    assert lines[0] == "x" * output.LINE_LIMIT + f" [{(10 << 20) - output.LINE_LIMIT} bytes more]"
    assert lines[-1] == out.lines()[-1] == "at last"
    assert out.bytes_read == (10 << 20) + 1 + 25600 + 1 + 7
    assert sum(len(line) for line in out.lines()) <= output.RING_BYTES


async def test_the_useful_line_before_300_lines_of_usage_is_still_there(
    pipe: tuple[int, int],
) -> None:
    out = Output(pipe[0])
    os.write(pipe[1], b"error: the useful line\n" + b"  --flag FLAG\n" * 300 + b"unfinished")
    out.pump()
    assert out.lines()[0] == "error: the useful line"
    assert out.lines()[-1] == "unfinished"
    assert len(out.lines()) == 302
    out.close()


async def test_close_ends_it_though_a_grandchild_holds_the_pipe(pipe: tuple[int, int]) -> None:
    heard: list[str] = []
    out = Output(pipe[0], heard.append)
    os.write(pipe[1], b"one\ntwo")
    out.pump()
    out.close()
    out.close()
    out.pump()
    assert out.ended.done()
    assert heard == out.lines() == ["one", "two"]


async def test_steps_of_a_progress_bar_do_not_fill_the_log_file(
    pipe: tuple[int, int], tmp_path: Path
) -> None:
    out = Output(pipe[0], log=LogFile(tmp_path / "log", 1000))
    os.write(pipe[1], b"load\n" + b"".join(b"\r%d%%" % n for n in range(100)) + b"\ndone\n")
    out.pump()
    out.close()
    assert (tmp_path / "log").read_bytes() == b"load\n99%\ndone\n"


def test_a_log_file_is_private_and_two_files_are_all_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    log = LogFile(path, limit=100)
    for n in range(50):
        log.write(b"line %02d\n" % n)
    log.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["engine.log", "engine.log.1"]
    assert all(p.stat().st_size <= 100 for p in tmp_path.iterdir())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    older = (tmp_path / "engine.log.1").read_bytes()
    assert (older + path.read_bytes()).endswith(b"line 48\nline 49\n")


def test_a_log_file_is_continued_by_the_next_run(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        log = LogFile(tmp_path / "log", limit=100)
        log.write(text)
        log.close()
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n"


def test_one_write_over_the_limit_keeps_its_end(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", limit=10)
    log.write(b"0123456789abcdef")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"6789abcdef"
    assert log.lost == 6


def test_a_log_file_that_can_t_be_written_costs_lines_only(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "missing" / "log", limit=100)
    log.write(b"lost\n")
    assert log.lost == 5
    (tmp_path / "missing").mkdir()
    log.write(b"kept\n")
    log.close()
    assert (tmp_path / "missing" / "log").read_bytes() == b"kept\n"


def test_a_log_file_never_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "target")
    log = LogFile(tmp_path / "log", limit=100)
    log.write(b"x\n")
    assert not (tmp_path / "target").exists()
