"""Bytes of the thrum in, tones out; knows lines and their limit, no sockets.

A line that is no tone, or is over the limit, is counted and skipped; the reader goes on with the
next. An empty line is nothing at all.
"""

from __future__ import annotations

from typing import Any

from hum_workers.thrum.tones import decode

LINE_LIMIT = 64 * 1024 * 1024
"""Bytes of one line; an image in a prompt may take megabytes (thrum, section 2)."""


class LineReader:
    """Splits a byte stream into tones. Holds at most one line of `limit` bytes and a read."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self.limit = limit
        self.dropped = {"not_a_tone": 0, "too_long": 0}
        """Lines skipped so far, by reason."""
        self._partial = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Returns the tones that `data` completes, in order. Never raises."""
        tones: list[dict[str, Any]] = []
        first, *lines = data.split(b"\n")
        if not lines:
            self._hold(first)
            return tones
        self._close(first, tones)
        rest = lines.pop()
        for line in lines:
            self._read(line, tones)
        self._hold(rest)
        return tones

    def _hold(self, data: bytes) -> None:
        # Only new bytes are looked at, so many small reads of a long line stay linear; past the
        # limit nothing is kept.
        if self._skipping or not data:
            return
        if len(self._partial) + len(data) > self.limit:
            self._skipping = True
            self._partial = bytearray()
            self.dropped["too_long"] += 1
        else:
            self._partial += data

    def _close(self, end: bytes, tones: list[dict[str, Any]]) -> None:
        if not self._partial and not self._skipping:
            self._read(end, tones)
            return
        self._hold(end)
        if self._skipping:
            self._skipping = False
            return
        line, self._partial = self._partial, bytearray()
        self._read(line, tones)

    def _read(self, line: bytes | bytearray, tones: list[dict[str, Any]]) -> None:
        if len(line) > self.limit:
            self.dropped["too_long"] += 1
        elif line and line != b"\r":
            tone = decode(line)
            if tone is None:
                self.dropped["not_a_tone"] += 1
            else:
                tones.append(tone)
