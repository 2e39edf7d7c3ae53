"""Msgpack frames between bee and tender: one shape on both pipes.

A frame is a msgpack array whose first item names it. Bee to tender: `raise` (once, first), `feed`,
`cancel`, `silence`. Tender to bee: `stage`, `notice`, `ready`, `mmm`, `cancelled`, `vitals`,
`work`, `gone` (once, last). The end of the bee's pipe means the same as `silence` without grace.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Any

import msgpack

from hum_workers.errors import FrameError

MAX_FRAME = 80 * 1024 * 1024
"""Bytes a reader holds at most: above the 64 MiB of one thrum line, so a prompt always fits."""


class Frame(StrEnum):
    """First item of a frame; what follows stands beside each."""

    RAISE = "raise"  # spec: dict (CellSpec.to_wire)
    FEED = "feed"  # turn: int, body: bytes (JSON of the chat request)
    CANCEL = "cancel"  # turn: int
    SILENCE = "silence"  # grace: float seconds, reason: str
    STAGE = "stage"  # stage: str, detail: str; a sign of life while the engine starts
    NOTICE = "notice"  # notice: str; a line of the engine's that the spec waits for
    READY = "ready"  # facts: dict (models, max_model_len, engine pid on the host, seconds)
    MMM = "mmm"  # events: [[turn, Mmm, data], ...]; one batch for one turn of the loop
    CANCELLED = "cancelled"  # turn: int, confirmed: bool, seconds: float
    VITALS = "vitals"  # vitals: dict (lifecycle.Vitals.to_wire)
    WORK = "work"  # output_tokens: int so far, tokens_per_second: float; while that changes
    GONE = "gone"  # what `emerged.verdict` reads, dict; the tree is dead


class Cause(StrEnum):
    """Why a tender ended an engine that nobody had asked it to end: `cause` of a `gone` frame."""

    NONE = ""  # it ended by itself, or was asked for
    MEMBER = "member"  # a process that it needs has ended
    MEMORY = "memory"  # over the limit that the tender watches
    STALLED = "stalled"  # no progress with turns in flight
    CANCEL = "cancel"  # it did not let a cancelled turn go
    START_TIMEOUT = "start_timeout"  # no progress while it started
    START = "start"  # what it showed at its start was not right
    SOCKET = "socket"  # its socket is lost: nobody can reach it any more
    TENDER = "tender"  # a fault of the tender's own


class Mmm(IntEnum):
    """Kinds of engine event inside an `mmm` frame; the type of `data` stands beside each."""

    TEXT = 0  # str, not empty
    REASONING = 1  # str, not empty
    TOOL = 2  # dict: index, id, name, arguments (pieces as the engine streams them)
    FINISH = 3  # dict: reason (the engine's own), usage {input, output, cached}; last of a turn
    ERROR = 4  # dict: code (ErrorCode), message, usage | None; last of a turn


def pack(*frame: Any) -> bytes:
    """Returns the bytes of one frame."""
    packed: bytes = msgpack.packb(frame, use_bin_type=True)
    return packed


class FrameReader:
    """Bytes in, frames out; holds a partial frame between two reads."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._unpacker = msgpack.Unpacker(
            raw=False, strict_map_key=False, max_buffer_size=limit, use_list=True
        )

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Yields the frames that `data` completes.

        Raises:
            FrameError: the bytes are no frame, or one is over the limit.
        """
        try:
            self._unpacker.feed(data)
            for frame in self._unpacker:
                if not isinstance(frame, list) or not frame:
                    raise FrameError(f"expected an array, read {type(frame).__name__}")
                yield frame
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise FrameError(f"unreadable frame: {error}") from error
