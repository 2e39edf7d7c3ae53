"""Bytes and tones as humd reads and writes them: strict JSON in, keys sorted out.

Pure. What humd drops is a `BadLine` with its reason, what makes it hang up a `NotUtf8`; both are
values that the server counts, neither reaches a peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

Tone = dict[str, Any]

NEST = "claude-repl"
"""The nest in whose name humd computes the sigils of what it passes on."""

MAX_DEPTH = 127
"""Arrays and objects inside each other that humd still reads (serde_json)."""

MAX_LINE = 256 * 1024 * 1024
"""Bytes of one line; humd has no such limit, a stand-in must not eat the machine."""

_BIGGEST, _SMALLEST = 2**64 - 1, -(2**63)
_BIG_INTEGER = re.compile(rb"[0-9]{19}")  # 2**63 has as many digits

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="sorted").encode
_HARMLESS = bytes(set(range(256)) - set(b"0123456789[{"))
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')


class BadLine(ValueError):
    """A line that humd drops without a word; the text is the reason."""


class NotUtf8(ValueError):
    """Bytes at which humd closes the connection."""


def decode(line: bytes) -> Tone:
    """Returns the tone of one line without its `\\n`.

    Raises:
        BadLine: not strict JSON, too deep, no object, or no non-empty string `chi`.
        NotUtf8: the bytes are not UTF-8, wherever in the line.
    """
    # One pass in C over the line tells that most lines hold neither a big integer nor deep nesting.
    marks = line.translate(None, _HARMLESS)
    big = len(marks) >= 19 and _BIG_INTEGER.search(line) is not None
    opened = marks.count(b"[") + marks.count(b"{")
    if opened > MAX_DEPTH and _depth(line) > MAX_DEPTH:
        raise BadLine("too deep")
    try:
        tone = _decode(line)
    except (ValueError, RecursionError):  # every error of msgspec here is a ValueError
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise NotUtf8(str(error)) from error
        raise BadLine("not JSON") from None
    if type(tone) is not dict:
        raise BadLine("not an object")
    chi = tone.get("chi")
    if type(chi) is not str or not chi:
        raise BadLine("no chi")
    return _rounded(tone) if big else tone


def encode(tone: Any) -> bytes:
    """Returns the line of a tone, keys sorted at every depth, with its `\\n`."""
    return _encode(tone) + b"\n"


@lru_cache(maxsize=4096)
def sigil(sid: str) -> str:
    """Returns the sigil that humd gives a sid: 12 hex digits."""
    return sha256(f"{NEST}:{sid}".encode()).hexdigest()[:12]


def _depth(line: bytes) -> int:
    depth = deepest = 0
    for token in _STRUCTURE.finditer(line):
        first = line[token.start()]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest


def _rounded(value: Any) -> Any:
    """Integers beyond 64 bits become floats, as serde_json reads them."""
    if type(value) is int and not _SMALLEST <= value <= _BIGGEST:
        return float(value)
    if type(value) is list:
        return [_rounded(item) for item in value]
    if type(value) is dict:
        return {key: _rounded(item) for key, item in value.items()}
    return value


class Lines:
    """Bytes in, lines out, without their `\\n`; a partial line waits, whatever its length."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.waiting = 0
        """Bytes of the partial line."""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that `data` completes."""
        if b"\n" not in data:
            self._hold(data)
            return []
        lines = data.split(b"\n")
        rest = lines.pop()
        if self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self.waiting = [], 0
        if rest:
            self._hold(rest)
        return lines

    def rest(self) -> Iterator[bytes]:
        """Yields what stands behind the last `\\n`: humd reads it as a line when the peer ends."""
        if self._parts:
            yield b"".join(self._parts)
            self._parts, self.waiting = [], 0

    def _hold(self, data: bytes) -> None:
        self._parts.append(data)
        self.waiting += len(data)
