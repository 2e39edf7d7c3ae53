"""What one turn has to say and has not said yet: its tones in order, waiting text merged.

An `Outbox` is what a turn speaks to. `TurnOutbox` is the one behind the pacer: it keeps control
tones as lines and text as text, so that text which waits becomes one delta when its time comes.
It counts what it holds and reports that to its pacer; it never writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hum_workers.thrum.tones import Dialect, Kind, clean, delta_encoder, encode, rid

MERGED = 8192
"""Code points of one delta at most, so that a line of plain text, which carries it twice, stays
below the 64 KiB at which asyncio's own line reader gives up."""
_LOOSE = 256
"""Texts kept apart before they are joined: a million tokens held singly would take 60 MiB."""


class Outbox(Protocol):
    """Takes the tones of one turn. None of the methods waits or fails for humd's sake."""

    def tone(self, tone: Mapping[str, Any]) -> None:
        """Sends a control tone, in order.

        Raises:
            ValueError: it can't be written as a tone.
        """

    def delta(self, kind: Kind, block: int, text: str) -> None:
        """Sends text of a block; it may be merged with text of the same block that follows."""

    def end(self, tone: Mapping[str, Any]) -> None:
        """Sends the ending, after everything else, with `rid` and `ext.<hive>.chars`. Only the
        first call counts.

        Raises:
            ValueError: it can't be written as a tone; the turn has no ending yet.
        """

    def late(
        self, make: Callable[[], bytes | None], size: int, tones: int, otherwise: Mapping[str, Any]
    ) -> None:
        """Sends lines that are made when it is their turn: about `size` bytes, so many `tones`.

        When `make` returns None, nothing that follows is sent but the ending, and that is
        `otherwise`.
        """

    def discard(self) -> None:
        """Drops tones and text that wait, but not the ending."""


class Pace(Protocol):
    """What a `TurnOutbox` needs of its pacer: the ledger of what waits, and two calls."""

    hive: str
    dialect: Dialect
    turn_limit: int
    total_limit: int
    held: int
    open: int
    merged: int
    extra: int

    def waiting(self, outbox: TurnOutbox) -> None:
        """The outbox has something to send and is on no list. It may be called again."""

    def withdrawn(self, outbox: TurnOutbox) -> None:
        """The outbox is on a list and has nothing to send any more."""

    def ended(self, ending: Sent) -> None:
        """The ending is being written."""


class Block:
    """Text of one block that waits, and the encoder of its deltas."""

    __slots__ = ("block", "encode", "kind", "loose", "waits", "whole")

    def __init__(self, kind: Kind, block: int, encode: Callable[[str], bytes]) -> None:
        self.kind = kind
        self.block = block
        self.encode = encode
        self.waits = False
        """It stands in the queue."""
        self.loose: list[str] = []
        self.whole: deque[str] = deque()

    def compact(self) -> None:
        """Joins the loose texts into pieces of at most `MERGED` code points."""
        text = "".join(self.loose)
        self.loose.clear()
        self.whole.extend(text[at : at + MERGED] for at in range(0, len(text), MERGED))

    def take(self) -> str:
        """Returns the text for one delta, the oldest first."""
        self.compact()
        parts = [self.whole.popleft()]
        room = MERGED - len(parts[0])
        while self.whole and len(self.whole[0]) <= room:
            room -= len(self.whole[0])
            parts.append(self.whole.popleft())
        return "".join(parts)


@dataclass(slots=True, eq=False)
class Sent:
    """An ending that was written. `again`: once more, if the connection goes before its echo."""

    sid: str
    rid: str
    line: bytes
    told: Callable[[], None]
    """Called when humd has read it, or when it goes no more."""
    again: bool = True


class Ending:
    """An ending that waits, written but for a number that is known when its time comes."""

    __slots__ = ("_head", "rid")

    def __init__(self, tone: Mapping[str, Any], hive: str) -> None:
        self.rid = rid()
        others = dict(tone.get("ext") or {})
        ours = dict(others.pop(hive, None) or {})
        ours.pop("chars", None)
        body = {key: value for key, value in tone.items() if key not in ("rid", "ext")}
        ext = {**others, hive: {**ours, "chars": 0}}
        self._head = encode({**body, "rid": self.rid, "ext": ext})[: -len(b"0}}}\n")]

    def line(self, chars: int) -> bytes:
        """Returns the tone for a turn that sent `chars` code points of text."""
        return b"%b%d}}}\n" % (self._head, chars)


@dataclass(slots=True, eq=False)
class Late:
    """Lines that are made when it is their turn."""

    make: Callable[[], bytes | None]
    size: int
    tones: int
    otherwise: Mapping[str, Any]


class TurnOutbox:
    """The outbox of one turn behind a pacer; `pop` is for the pacer alone."""

    __slots__ = (
        "_block",
        "_chars",
        "_ended",
        "_full",
        "_on_overflow",
        "_on_told",
        "_pace",
        "_queue",
        "following",
        "held",
        "held_back",
        "listed",
        "popped",
        "sid",
    )

    def __init__(
        self,
        pace: Pace,
        sid: str,
        on_overflow: Callable[[], None],
        on_told: Callable[[], None],
    ) -> None:
        self.sid = sid
        self.held = 0
        """Bytes of UTF-8 that wait, text and control tones; the ending is not counted."""
        self.listed = False
        """The pacer has this outbox on one of its lists."""
        self.popped = 0
        """Tones taken so far."""
        self.held_back = False
        """An earlier turn of its sid has not sent its ending."""
        self.following: TurnOutbox | None = None
        """The next turn of its sid."""
        self._pace = pace
        self._on_overflow = on_overflow
        self._on_told = on_told
        self._queue: list[bytes | Block | Late | Ending] = []
        self._block: Block | None = None
        self._chars = 0
        self._full = False
        self._ended = False

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def over(self) -> bool:
        """Its ending was taken; nothing follows."""
        return self._ended and not self._queue

    def tone(self, tone: Mapping[str, Any]) -> None:
        """See `Outbox.tone`."""
        if self._full or self._ended:
            return
        line = encode(tone)
        if self._block is not None and self._block.waits:
            self._block = None
        self._queue.append(line)
        self._hold(len(line))

    def delta(self, kind: Kind, block: int, text: str) -> None:
        """See `Outbox.delta`."""
        if not text or self._full or self._ended:
            return
        if text.isascii():
            size = len(text)
        else:
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                text = clean(text)
                size = len(text.encode())
        current = self._block
        if current is None or current.block != block or current.kind != kind:
            encoder = delta_encoder(self.sid, kind, block, self._pace.dialect)
            current = self._block = Block(kind, block, encoder)
        if not current.waits:
            current.waits = True
            self._queue.append(current)
        else:
            self._pace.merged += 1
        current.loose.append(text)
        if len(current.loose) == _LOOSE:
            current.compact()
        self._hold(size)

    def end(self, tone: Mapping[str, Any]) -> None:
        """See `Outbox.end`."""
        if self._ended:
            return
        self._queue.append(Ending(tone, self._pace.hive))
        self._ended = True
        self._on_overflow = _nothing  # it holds the turn, and with it the prompt
        if not self.listed:
            self._pace.waiting(self)

    def late(
        self, make: Callable[[], bytes | None], size: int, tones: int, otherwise: Mapping[str, Any]
    ) -> None:
        """See `Outbox.late`."""
        if self._full or self._ended:
            return
        if self._block is not None and self._block.waits:
            self._block = None
        self._queue.append(Late(make, size, tones, otherwise))
        self._hold(size)

    def discard(self) -> None:
        """See `Outbox.discard`."""
        ending = self._queue.pop() if self._ended and self._queue else None
        self._queue.clear()
        self._block = None
        self._pace.held -= self.held
        self.held = 0
        if ending is not None:
            self._queue.append(ending)
        elif self.listed:
            self._pace.withdrawn(self)

    def pop(self) -> bytes:
        """Takes the next tone, as a line; there must be one. No bytes: it could not be made."""
        self.popped += 1
        item = self._queue[0]
        if type(item) is Block:
            return self._pop_text(item)
        self._queue.pop(0)
        if type(item) is bytes:
            self._release(len(item))
            return item
        if type(item) is Late:
            self._release(item.size)
            lines = item.make()
            if not lines:
                return self._spoilt(item)
            self._pace.extra += item.tones - 1
            return lines
        assert isinstance(item, Ending)
        line = item.line(self._chars)
        self._pace.open -= 1
        self._pace.ended(Sent(self.sid, item.rid, line, self._on_told))
        return line

    def _spoilt(self, item: Late) -> bytes:
        """Drops what follows and returns the ending, if it was said; else only that may come."""
        self._queue.clear()
        self._block = None
        self._release(self.held)
        if not self._ended:
            self._full = True
            return b""
        self._queue.append(Ending(item.otherwise, self._pace.hive))
        return self.pop()

    def _pop_text(self, block: Block) -> bytes:
        # Bytes bound code points from above, so a turn that holds little needs no counting.
        if self.held <= MERGED and not block.whole:
            loose = block.loose
            text = loose[0] if len(loose) == 1 else "".join(loose)
            loose.clear()
        else:
            text = block.take()
        if not block.whole:
            block.waits = False
            self._queue.pop(0)
        if block.kind == "text":
            self._chars += len(text)
        self._release(len(text) if text.isascii() else len(text.encode()))
        return block.encode(text)

    def _release(self, size: int) -> None:
        self.held -= size
        self._pace.held -= size

    def _hold(self, size: int) -> None:
        pace = self._pace
        self.held += size
        pace.held += size
        if not self.listed:
            pace.waiting(self)
        if self.held > pace.turn_limit or pace.held > pace.total_limit:
            # The turn may discard and end from within the call, so it comes last.
            self._full = True
            self._on_overflow()


def _nothing() -> None:
    """What is called for a turn that has ended."""
