"""A program that is asked one thing, and what it may leave behind: nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hum_workers.process.asked_process import ask
from hum_workers.program.plain_files import read_plain

ENV = {"PATH": os.environ["PATH"]}


def test_what_a_program_prints_and_its_code_come_back() -> None:
    done = ask(["sh", "-c", "echo out; echo err >&2; exit 3"], env=ENV, cwd="/", timeout=10)
    assert (done.code, done.out, done.err) == (3, b"out\n", b"err\n")


def test_a_flood_is_read_to_its_end_and_kept_in_part() -> None:
    done = ask(["sh", "-c", "head -c 20000000 /dev/zero"], env=ENV, cwd="/", timeout=10)
    assert done.code == 0
    assert len(done.out) == 16 * 1024 * 1024


def test_a_child_that_holds_the_pipe_is_not_waited_for_and_goes_too(tmp_path: Path) -> None:
    before = time.monotonic()
    done = ask(["sh", "-c", "sleep 321 & echo $!"], env=ENV, cwd="/", timeout=20)
    assert time.monotonic() - before < 10
    assert _gone(int(done.out))


def test_a_program_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = f"sleep 321 & echo $! > {told}.new; mv {told}.new {told}; wait"
    with pytest.raises(TimeoutError):
        ask(["sh", "-c", script], env=ENV, cwd="/", timeout=1.0)
    assert _gone(int(told.read_text()))


def test_only_a_regular_file_of_a_limited_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_plain(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="is larger than 4 bytes"):
        read_plain(tmp_path / "file", 4)
    for name in ("pipe", "zero", "."):
        with pytest.raises(OSError, match="is no regular file"):
            read_plain(tmp_path / name, 5)
    with pytest.raises(OSError, match="can't be that of a file"):
        read_plain("a\0b", 5)


def _gone(pid: int) -> bool:
    """Whether a process has ended, or does within 5 s."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
