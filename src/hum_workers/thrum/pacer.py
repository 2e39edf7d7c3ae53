"""The one place that decides what goes to humd next: pacing, merging, turns in turn, endings.

Pure: no asyncio, no I/O, the clock is passed in. Turns put tones in through their `Outbox`; the
connection takes bytes out with `take` when it can write. Kept promises:

- never more tones than the bucket holds, whatever kind they are of;
- tones of a turn keep their order, its ending comes last, text that waits is merged;
- turns of one sid go one after the other, as their outboxes were made: tones carry only the sid;
- the first tones of a turn go ahead of what else waits, the rest goes round robin;
- an ending is kept until humd has echoed it, and goes once more if the connection was lost;
- what is held is bounded, a turn and in all; the turn that goes over is told once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hum_workers.thrum.bucket import Bucket
from hum_workers.thrum.outbox import Outbox, Sent, TurnOutbox
from hum_workers.thrum.tones import Dialect

__all__ = ["Outbox", "Pacer"]

MIB = 1024 * 1024
HEAD_START = 3
"""Tones of a turn that go ahead of others: session-ready, the start of a block, its first text."""
ENDINGS_KEPT = 4096
"""Endings that may await their echo; humd echoes at once, so more means that it does not echo."""


class Pacer:
    """Holds what the turns have to say until it may be written.

    Sizes are exact bytes of UTF-8 text plus those of encoded control tones. The strings themselves
    may take up to four times that, where one wide character stands among narrow ones.
    """

    def __init__(
        self,
        rate: float,
        burst: int,
        now: Callable[[], float],
        hive: str,
        dialect: Dialect = "both",
        turn_limit: int = 4 * MIB,
        total_limit: int = 64 * MIB,
    ) -> None:
        self.bucket = Bucket(rate, burst, now)
        self.hive = hive
        self.dialect: Dialect = dialect
        self.turn_limit = turn_limit
        self.total_limit = total_limit
        self.open = 0
        """Turns whose ending has not been written."""
        self.held = 0
        """Bytes that wait, of all turns."""
        self.sent = 0
        """Tones taken so far, those that are sent again included."""
        self.merged = 0
        """Texts so far that went in the delta of another."""
        self.extra = 0
        """Tones of this `take` beyond one for each item that was taken."""
        self.notify: Callable[[], None] = lambda: None
        """Called when something waits for the first time since the last `take`."""
        self._noted = False
        self._urgent: deque[bytes] = deque()
        self._again: deque[Sent] = deque()
        self._young: deque[TurnOutbox] = deque()
        self._turns: deque[TurnOutbox] = deque()
        self._newest: dict[str, TurnOutbox] = {}
        self._unechoed: dict[str, Sent] = {}
        self._last: dict[str, Sent] = {}

    def outbox(
        self,
        sid: str,
        on_overflow: Callable[[], None],
        on_told: Callable[[], None] = lambda: None,
    ) -> Outbox:
        """Returns the outbox of a new turn. `on_overflow` is called at most once, from within
        `tone` or `delta`; from then on the turn's outbox takes nothing but its ending. Every turn
        must end: what the next one of its sid says is held until then. `on_told` is called once,
        when humd has read the ending or it was sent for the last time."""
        outbox = TurnOutbox(self, sid, on_overflow, on_told)
        self.open += 1
        before = self._newest.get(sid)
        if before is not None:
            before.following = outbox
            outbox.held_back = True
        self._newest[sid] = outbox
        return outbox

    def urgent(self, line: bytes) -> None:
        """Puts a line ahead of everything: hello and the like. It counts against the bucket."""
        self._urgent.append(line)
        self._note()

    def take(self) -> bytes:
        """Returns all that may be written now, and counts it as written."""
        self._noted = False
        if not self._any():
            return b""
        limit = self.bucket.allowance()
        lines: list[bytes] = []
        self.extra = 0
        while len(lines) + self.extra < limit and (line := self._next()):
            lines.append(line)
        count = len(lines) + self.extra
        self.sent += count
        self.bucket.take(count)
        return lines[0] if len(lines) == 1 else b"".join(lines)

    def wait(self) -> float | None:
        """Returns the seconds until the next tone may go; None when nothing waits."""
        return self.bucket.wait() if self._any() else None

    def echoed(self, rid: str) -> None:
        """humd has read the tone with this rid."""
        ending = self._unechoed.pop(rid, None)
        if ending is None:
            return
        if self._last.get(ending.sid) is ending:
            del self._last[ending.sid]
        ending.told()

    def lost(self) -> None:
        """The connection went: what is urgent is stale, and unechoed endings go once more, ahead
        of all turns. The bucket starts as full as time has made it."""
        self.bucket.forget_unread()
        self._urgent.clear()
        written = list(self._unechoed.values())
        self._unechoed.clear()
        self._last.clear()
        for ending in written:
            if ending.again:
                self._again.append(ending)
            else:
                ending.told()

    @property
    def idle(self) -> bool:
        """Nothing waits, and humd has read every ending."""
        return not self._any() and not self._unechoed

    def waiting(self, outbox: TurnOutbox) -> None:
        """Lists an outbox that has something to send and is on no list, if it is its sid's turn."""
        if outbox.held_back:
            return
        outbox.listed = True
        (self._young if outbox.popped < HEAD_START else self._turns).append(outbox)
        self._note()

    def withdrawn(self, outbox: TurnOutbox) -> None:
        """Takes a listed outbox that has nothing to send any more off its list."""
        outbox.listed = False
        (self._young if outbox in self._young else self._turns).remove(outbox)

    def ended(self, ending: Sent) -> None:
        """Keeps an ending that is being written until its echo comes."""
        self._unechoed[ending.rid] = ending
        self._last[ending.sid] = ending
        if len(self._unechoed) > ENDINGS_KEPT:
            self.echoed(next(iter(self._unechoed)))

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            self.notify()

    def _any(self) -> bool:
        return bool(self._turns or self._young or self._urgent or self._again)

    def _next(self) -> bytes | None:
        if self._urgent:
            return self._urgent.popleft()
        if self._again:
            ending = self._again.popleft()
            ending.again = False
            self.ended(ending)
            return ending.line
        turns = self._young or self._turns
        if not turns:
            return None
        outbox = turns.popleft()
        if not outbox.popped and (earlier := self._last.pop(outbox.sid, None)):
            # Another turn has begun on this sid: its asker would take the repeated ending of the
            # earlier one for its own, and the earlier asker hears this turn's ending.
            earlier.again = False
        line = outbox.pop()
        if outbox:
            (self._young if outbox.popped < HEAD_START else self._turns).append(outbox)
        else:
            outbox.listed = False
            if outbox.over:
                self._over(outbox)
        return line or self._next()

    def _over(self, outbox: TurnOutbox) -> None:
        """This turn has sent its ending: the next one of its sid may speak."""
        following = outbox.following
        if following is None:
            del self._newest[outbox.sid]
            return
        following.held_back = False
        if following:
            self.waiting(following)
