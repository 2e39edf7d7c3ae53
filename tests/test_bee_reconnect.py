"""humd killed, away, stalled or half closed in the middle of turns: each turn ends once, in order.

A prompt's sid belongs to nobody after a restart of humd, so its tones go to all who have claimed
none: the asker that came back is one.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from hum_workers.fake_humd import Asker, FakeHumd
from hum_workers.fake_humd.asker import spoken
from hum_workers.fake_humd.wire import Tone
from tests.engine_view import EngineView
from tests.raw_humd import ENDINGS, under_raw_humd
from tests.rig import WAIT, Bee, egg, fake, served

STREAMS = 16
TOKENS = 500
WHOLE = " ".join(f"w{n}" for n in range(TOKENS))
MIB = 1024 * 1024


class Ears:
    """Text and endings by sid, as they come out of one humd after the other."""

    def __init__(self, humd: FakeHumd) -> None:
        self.text: dict[str, str] = defaultdict(str)
        self.endings: dict[str, list[Tone]] = defaultdict(list)
        humd.tap = self._hear

    def _hear(self, hive: str, tone: Tone) -> None:
        if hive == "vllm-worker" and "sid" in tone:
            kind, text = spoken(tone)
            if kind == "text":
                self.text[tone["sid"]] += text
            if tone["chi"] in ENDINGS:
                self.endings[tone["sid"]].append(tone)


def start(asker: Asker, tokens: int = TOKENS, rate: int = 200) -> list[str]:
    """Starts the streams."""
    text = fake(tokens=tokens, rate=rate)
    return [asker.prompt(sid=f"s{n}", modelId="echo", text=text) for n in range(STREAMS)]


def tender_pids(bee: Bee) -> list[int]:
    return [event["pid"] for event in bee.events("worker.cell.spawned")]


@pytest.mark.parametrize(("away", "paused"), [(0.0, True), (3.0, False)])
async def test_humd_restarts_in_the_middle_of_16_streams(
    short_dir: Path, away: float, paused: bool
) -> None:
    """3 s are longer than a bee's pause between two attempts, so one of them fails.

    `paused`: the asker does not read, so that humd dies with text that it has taken.
    """
    async with served(short_dir, egg(short_dir)) as (humd, bee, before):
        took = Ears(humd)
        sids = start(before)
        await humd.until(lambda: all(len(took.text[sid]) > 100 for sid in sids), WAIT)
        if paused:
            before.pause_reading()
            await humd.until(lambda: all(len(took.text[sid]) > 300 for sid in sids), WAIT)
        await humd.restart(down_for=away)
        before.resume_reading()
        heard = [await before.collect(sid) for sid in sids]
        later = Ears(humd)
        async with await Asker.connect(humd.socket) as after:
            assert not humd.serves("echo"), "the asker is back first"
            await humd.until(lambda: humd.serves("echo"), WAIT)
            rest = [await after.collect(sid, WAIT) for sid in sids]
            for first, second in zip(heard, rest, strict=True):
                sid = first.sid
                assert first.ending is None
                assert second.ending is not None
                assert second.ending["finishReason"] == "stop"
                assert second.chars == len(WHOLE)
                # Before and after are the two ends of the whole, and nothing of it came twice.
                assert WHOLE.startswith(first.text)
                assert took.text[sid].startswith(first.text)
                assert WHOLE.endswith(second.text)
                assert second.text == later.text[sid]
                assert len(took.text[sid]) + len(second.text) <= len(WHOLE)
            lost = sum(len(took.text[first.sid]) - len(first.text) for first in heard)
            assert lost > 0 or not paused
            answer = await after.ask(fake(tokens=2), "echo")
            assert answer.text == "w0 w1"
        assert [len(later.endings[sid]) for sid in sids] == [1] * STREAMS
        assert tender_pids(bee) == tender_pids(bee)[:1]
        assert len(bee.events("worker.disconnected")) == 1
        assert humd.bad_lines.total() == 0


async def test_text_over_the_bound_of_a_turn_while_humd_is_away_ends_it_in_the_engine_too(
    short_dir: Path,
) -> None:
    engine = EngineView(short_dir)
    async with served(short_dir, egg(short_dir)) as (humd, bee, before):
        size = 64 * 1024
        much = fake(tokens=4000, event_bytes=size, rate=200)
        before.prompt(sid="much", modelId="echo", text=much)
        before.prompt(sid="little", modelId="echo", text=fake(tokens=600, rate=200))
        await humd.until(lambda: before.received > 20, WAIT)
        humd.kill()
        # Over 4 MiB wait after some 64 tokens; the one with little text goes on.
        counts = await engine.works_on(1)
        assert counts["vllm:generation_tokens_total"] < 1000
        humd.listen()
        async with await Asker.connect(humd.socket) as after:
            lost = await after.collect("much", WAIT)
            assert lost.ending is not None
            assert lost.ending["code"] == "humd_lost"
            assert 0 < lost.ending["usage"]["output_tokens"] < 1000
            assert lost.text == ""
            little = await after.collect("little", WAIT)
            assert little.ending is not None
            assert little.ending["finishReason"] == "stop"
        await engine.works_on(0)
        assert len(tender_pids(bee)) == 1


async def test_an_ending_whose_echo_was_lost_is_sent_once_more_after_the_next_hello(
    short_dir: Path,
) -> None:
    async with under_raw_humd(short_dir, egg(short_dir, name="m1")) as (humd, _, first):
        first.echoes = False
        ending = await first.answer("s")
        first.raw(b'{"chi":"prompt","sid":"cut","modelId":"m1","content":"h')
        first.hang_up()
        second = await humd.seat()
        second.raw(b'i"}\n')
        second.echoes = False
        await second.until(lambda: second.endings["s"] == 1)
        assert list(second.tones) == ["", "s"], "hello comes first"
        assert second.tones["s"] == [ending]
        second.hang_up()
        third = await humd.seat()
        assert (await third.answer("another"))["chi"] == "finish"
        assert "s" not in third.endings
        assert "cut" not in second.endings + third.endings, "half a line goes with its connection"


async def test_a_humd_that_stalls_costs_nothing_but_time(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (humd, bee, asker):
        sids = start(asker, rate=1000)
        await humd.until(lambda: asker.received > 200, WAIT)
        humd.stall()
        await EngineView(short_dir).works_on(0)
        humd.resume()
        answers = [await asker.collect(sid, WAIT) for sid in sids]
        assert [answer.text for answer in answers] == [WHOLE] * STREAMS
        assert all(answer.complete for answer in answers)
        assert bee.events("worker.disconnected") == []
        assert humd.dropped == 0


async def test_a_humd_that_closes_its_half_is_left_and_found_again(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (humd, bee, asker):
        sids = start(asker, tokens=640)
        await humd.until(lambda: asker.received > 100, WAIT)
        assert humd.half_close("vllm-worker") == 1
        await humd.until(lambda: not humd.serves("echo"), WAIT)
        await humd.until(lambda: humd.serves("echo"), WAIT)
        answers = [await asker.collect(sid, WAIT) for sid in sids]
        whole = " ".join(f"w{n}" for n in range(640))
        assert [answer.text for answer in answers] == [whole] * STREAMS
        assert all(answer.complete for answer in answers)
        assert len(bee.events("worker.cell.spawned")) == 1


async def test_a_prompt_that_comes_in_two_pieces_is_one_prompt(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (humd, _, asker):
        humd.cut_lines("vllm-worker")
        answer = await asker.ask(fake(text=["é日本", "😀"]), "echo")
        assert answer.text == "é日本😀"
        assert answer.complete
