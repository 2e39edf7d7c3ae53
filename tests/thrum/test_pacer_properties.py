"""Whatever the order of what turns, clock, humd and connection do, the pacer keeps its promises."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hum_workers.thrum.pacer import Outbox, Pacer
from tests.thrum.conftest import Clock

RATE, BURST = 100, 5
TURNS = st.integers(0, 3)
TEXTS = st.text(st.sampled_from("ab \nü😀\ud83d"), min_size=1, max_size=8)

Item = tuple[str, str]
"""A stretch of text under its kind and block, or a control tone under its number."""


def merged(items: list[Item]) -> list[Item]:
    """Joins neighbours that are text of one block, as an asker would."""
    joined: list[Item] = []
    for label, text in items:
        if joined and joined[-1][0] == label and not label.startswith("tone"):
            joined[-1] = (label, joined[-1][1] + text)
        else:
            joined.append((label, text))
    return joined


class Turn:
    """What a turn said, what came out for it, and whether that must be the same."""

    def __init__(self, pacer: Pacer, sid: str) -> None:
        self.sid = sid
        self.said: list[Item] = []
        self.heard: list[Item] = []
        self.ended = False
        self.discarded = False
        self.endings: list[dict[str, Any]] = []
        self.outbox: Outbox = pacer.outbox(sid, self.overflow)

    def overflow(self) -> None:
        assert not self.discarded
        self.end_early()

    def end_early(self) -> None:
        self.discarded = self.ended = True
        self.outbox.discard()
        self.outbox.end({"chi": "error", "sid": self.sid})


class World(RuleBasedStateMachine):
    """A pacer, four turns at a time, a humd that reads when it likes, and a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.pacer = Pacer(RATE, BURST, self.clock, "h", turn_limit=600, total_limit=1500)
        self.pacer.bucket.all_read = lambda: not self.unread
        self.unread = 0
        self.read: list[tuple[float, int]] = [(self.clock(), 0)]
        self.count = 0
        self.turns: list[Turn] = []
        self.all: dict[str, Turn] = {}
        self.unechoed: dict[str, int] = {}
        self.expect_again: set[str] = set()
        for _ in range(4):
            self.turns.append(self.new_turn())

    def new_turn(self) -> Turn:
        turn = Turn(self.pacer, f"s{len(self.all)}")
        self.all[turn.sid] = turn
        return turn

    def open_turn(self, at: int) -> Turn:
        if self.turns[at].ended:
            self.turns[at] = self.new_turn()
        return self.turns[at]

    @rule(
        at=TURNS, kind=st.sampled_from(["text", "reasoning"]), block=st.integers(0, 1), text=TEXTS
    )
    def delta(self, at: int, kind: Any, block: int, text: str) -> None:
        turn = self.open_turn(at)
        turn.said.append((f"{kind}{block}", text.replace("\ud83d", "\ufffd")))
        turn.outbox.delta(kind, block, text)

    @rule(at=TURNS)
    def tone(self, at: int) -> None:
        turn = self.open_turn(at)
        self.count += 1
        turn.said.append((f"tone{self.count}", ""))
        turn.outbox.tone({"chi": "pulse", "sid": turn.sid, "n": self.count})

    @rule(at=TURNS)
    def end(self, at: int) -> None:
        turn = self.open_turn(at)
        turn.ended = True
        turn.outbox.end({"chi": "finish", "sid": turn.sid})

    @rule(at=TURNS)
    def cut_short(self, at: int) -> None:
        self.open_turn(at).end_early()

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.04, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.pass_(seconds)

    @rule()
    def humd_reads(self) -> None:
        self.read.append((self.clock(), self.unread))
        self.unread = 0

    @rule()
    def take(self) -> None:
        for line in self.pacer.take().splitlines():
            self.unread += 1
            self.hear(json.loads(line))

    @precondition(lambda self: self.unechoed)
    @rule(data=st.data())
    def echo(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.unechoed)))
        del self.unechoed[rid]
        self.pacer.echoed(rid)

    @rule()
    def lose_connection(self) -> None:
        self.unread = 0
        self.pacer.lost()
        self.expect_again |= {rid for rid, times in self.unechoed.items() if times == 1}
        self.unechoed.clear()
        self.pacer.urgent(b'{"chi":"hello"}\n')

    def hear(self, tone: dict[str, Any]) -> None:
        if tone["chi"] == "hello":
            return
        turn = self.all[tone["sid"]]
        if tone["chi"] in ("finish", "error"):
            self.hear_ending(turn, tone)
            return
        assert not turn.endings, "nothing follows an ending"
        if tone["chi"] == "pulse":
            turn.heard.append((f"tone{tone['n']}", ""))
        else:
            kind = tone["chunkType"].removesuffix("_delta")
            assert tone["delta"]
            turn.heard.append((f"{kind}{tone['blockIdx']}", tone["delta"]))

    def hear_ending(self, turn: Turn, tone: dict[str, Any]) -> None:
        rid = tone["rid"]
        self.unechoed[rid] = 2 if turn.endings else 1
        if turn.endings:
            assert rid in self.expect_again, "only after a loss, only once"
            assert turn.endings == [tone]
            self.expect_again.discard(rid)
        turn.endings.append(tone)
        texts = [text for label, text in turn.heard if label.startswith("text")]
        assert tone["ext"]["h"]["chars"] == len("".join(texts))
        if not turn.discarded:
            assert merged(turn.heard) == merged(turn.said)

    @invariant()
    def what_came_out_is_a_beginning_of_what_went_in(self) -> None:
        for turn in self.turns:
            said, heard = merged(turn.said), merged(turn.heard)
            if heard:
                *whole, (label, text) = heard
                assert whole == said[: len(whole)]
                assert said[len(whole)][0] == label
                assert said[len(whole)][1].startswith(text)

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        assert 0 <= self.pacer.held <= 1500

    @invariant()
    def the_wait_is_never_below_a_millisecond(self) -> None:
        wait = self.pacer.wait()
        assert wait is None or wait >= 0.001

    def teardown(self) -> None:
        for turn in self.turns:
            if not turn.ended:
                turn.ended = True
                turn.outbox.end({"chi": "finish", "sid": turn.sid})
        while (wait := self.pacer.wait()) is not None:
            self.clock.pass_(wait)
            self.humd_reads()
            self.take()
        assert all(turn.endings for turn in self.all.values() if turn.ended)
        assert not self.expect_again
        assert self.pacer.held == 0
        for first, (start, _) in enumerate(self.read):
            total = 0
            for time, count in self.read[first:]:
                total += count
                assert total <= BURST + RATE * (time - start) + 1e-6


World.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestWorld = World.TestCase
