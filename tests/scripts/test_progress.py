"""Progress on a terminal and in a log."""

from __future__ import annotations

import io
import threading

from scripts.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Watched(io.StringIO):
    """Tells when a line with a mark is written."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark
        self.seen = threading.Event()

    def write(self, text: str) -> int:
        if self.mark in text:
            self.seen.set()
        return super().write(text)


def test_a_log_has_whole_lines_and_no_control_characters() -> None:
    out = io.StringIO()
    with Progress(out) as progress:
        progress.stage("one")
        progress.say("two")
    assert [line.split("] ")[1] for line in out.getvalue().splitlines()] == ["one", "two"]
    assert "\r" not in out.getvalue()
    assert "\033" not in out.getvalue()


def test_silence_is_broken_by_a_heartbeat_with_a_detail() -> None:
    out = Watched("… 3 of 7")
    with Progress(out, beat=0.02) as progress:
        progress.stage("installing")
        progress.detail = lambda: "3 of 7"
        assert out.seen.wait(5)


def test_a_terminal_ends_without_a_half_written_status() -> None:
    out = Terminal()
    with Progress(out) as progress:
        progress.stage("one")
    assert out.getvalue().endswith("\r\033[K")
