"""The books of a soak: what humd read of each turn, and what is wrong with it.

Text and endings are taken where humd reads them, so that an asker whose connection went with humd
is judged as well. Clock: seconds of the loop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from bench.soak_plan import Ask
from hum_workers.fake_humd.asker import ENDINGS, Answer, spoken
from hum_workers.fake_humd.wire import Tone

REPEATED = 2.0
"""Seconds before the death of a bee in which an ending may have been read and its echo lost."""


@dataclass
class Turn:
    """One prompt and what came of it."""

    ask: Ask
    sent: float
    text: list[str] = field(default_factory=list)
    endings: dict[str, tuple[float, Tone]] = field(default_factory=dict)
    """By rid, as one that goes again after a lost connection is the same."""
    answered: Answer | None = None
    """What its asker heard."""
    lost: str = ""
    """Why it never reached the bee."""
    seen: bool = False
    """The bee has said something of it, or had it in its journal."""


class Audit:
    """Every turn of a run, and when which part was disturbed."""

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.bee_kills: list[float] = []
        self.humd_kills: list[float] = []
        self.strange: list[str] = []

    def hear(self, now: float, tone: Tone) -> None:
        """Takes a tone that a bee has sent."""
        turn = self.turns.get(str(tone.get("sid")))
        if turn is None:
            return
        turn.seen = True
        kind, text = spoken(tone)
        if kind == "text":
            turn.text.append(text)
        if tone["chi"] in ENDINGS:
            turn.endings.setdefault(str(tone.get("rid")), (now, tone))
        elif turn.endings and tone["chi"] == "chunk":
            self.strange.append(f"{turn.ask.sid}: a {tone['chi']} after the ending")

    def disturbed(self, since: float) -> bool:
        """Whether a prompt that was sent then may have been lost on its way."""
        return any(at >= since - 0.1 for at in (*self.bee_kills, *self.humd_kills))

    def faults(self) -> list[str]:
        """Returns what is wrong, one line each."""
        return self.strange + [line for turn in self.turns.values() if (line := self._fault(turn))]

    def _fault(self, turn: Turn) -> str:
        sid = turn.ask.sid
        if not turn.endings:
            by_humd = turn.answered is not None and turn.answered.ending is not None
            return "" if turn.lost or by_humd else f"{sid}: no ending"
        ends = sorted(turn.endings.values(), key=lambda pair: pair[0])
        if len(ends) > 1 and not self._repeat(ends):
            return f"{sid}: {len(ends)} endings: {[_name(tone) for _, tone in ends]}"
        at, tone = ends[0]
        if tone.get("finishReason") not in ("stop", "length"):
            return ""
        torn = any(turn.sent <= kill <= at for kill in self.humd_kills)
        text, chars = "".join(turn.text), _chars(tone)
        if torn:  # what humd had not read of its socket when it died is lost, and `chars` shows it
            return "" if len(text) <= chars else f"{sid}: {len(text)} characters, {chars} sent"
        if len(text) != chars or (turn.ask.whole is not None and text != turn.ask.whole):
            return f"{sid}: {len(text)} characters of {chars} sent, as {_name(tone)}"
        heard = turn.answered
        if heard is not None and heard.ending is not None and heard.text != text:
            return f"{sid}: its asker heard {len(heard.text)} of {chars} characters"
        return ""

    def _repeat(self, ends: list[tuple[float, Tone]]) -> bool:
        """Whether the second ending is that of a bee which could not know of the first."""
        (first, _), (second, tone) = ends[:2]
        killed = any(first <= kill <= min(second, first + REPEATED) for kill in self.bee_kills)
        return len(ends) == 2 and killed and tone.get("code") == "bee_restarted"

    def endings(self) -> dict[str, int]:
        """Returns how many turns ended how."""
        names: Counter[str] = Counter()
        for turn in self.turns.values():
            if turn.endings:
                names[_name(min(turn.endings.values(), key=lambda pair: pair[0])[1])] += 1
            elif turn.lost:
                names["lost on its way"] += 1
            else:
                names["by humd"] += 1
        return dict(names.most_common())


def _name(tone: Tone) -> str:
    return str(tone.get("finishReason") or tone.get("code") or "no worker")


def _chars(tone: Tone) -> int:
    ext: dict[str, Any] = tone.get("ext") or {}
    return sum(int(part.get("chars", 0)) for part in ext.values())
